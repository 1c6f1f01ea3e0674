/* What a span costs a C program, in ns: cc -O2 -Iinclude tests/c/cost.c && GPUWHY_RING=... ./a.out
 * The ring must hold 1 << 14 records, and a consumer must empty it: `cargo run --example listen`. */
#include <stdio.h>

#include "gpuwhy.h"

int main(void) {
    uint32_t name = gpuwhy_name("span");
    unsigned round, i;
    for (round = 0; round < 20; round++) {
        uint64_t start = gpuwhy_exact_();
        for (i = 0; i < 1 << 13; i++) {
            struct gpuwhy_phase phase = gpuwhy_phase_begin_id(0, name);
            gpuwhy_phase_end(&phase);
        }
        printf("%.1f ", (double)(gpuwhy_exact_() - start) / (1 << 13));
        usleep(100000);
    }
    printf("\n");
    return 0;
}
