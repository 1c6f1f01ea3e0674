/* Prints the layout as the header declares it; the golden text is tests/layout.txt. */
#include <stddef.h>
#include <stdio.h>

#include "gpuwhy.h"

#define FIELD(type, field) printf("%s.%s %zu\n", #type, #field, offsetof(struct gpuwhy_##type, field))

int main(void) {
    uint64_t words[GPUWHY_RECORD_WORDS] = {1ull << 32 | 99, 2, 3, 4, 5, 6, 7};
    printf("magic %#llx version %u\n", (unsigned long long)GPUWHY_MAGIC, GPUWHY_VERSION);
    FIELD(header, magic);
    FIELD(header, version);
    FIELD(header, slot_bytes);
    FIELD(header, slots);
    FIELD(header, names);
    FIELD(header, name_bytes);
    FIELD(header, total_bytes);
    FIELD(header, created);
    FIELD(header, head);
    FIELD(header, lost);
    FIELD(header, late);
    FIELD(header, names_lost);
    FIELD(header, tail);
    FIELD(header, lost_reported);
    FIELD(header, records);
    FIELD(header, torn);
    FIELD(header, abandoned);
    printf("header %zu\n", sizeof(struct gpuwhy_header));
    printf("names at %u\n", GPUWHY_HEADER_BYTES);
    FIELD(slot, sequence);
    FIELD(slot, words);
    printf("slot %zu\n", sizeof(struct gpuwhy_slot));
    FIELD(name_entry, state);
    FIELD(name_entry, text);
    printf("name_entry %zu\n", sizeof(struct gpuwhy_name_entry));
    printf("check %#x %#x\n", gpuwhy_check_(words, 0), gpuwhy_check_(words, 1));
    return 0;
}
