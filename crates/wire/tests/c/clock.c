/* Whatever the schedule, a fast reading lies between two calls, and none goes back. */
#include <stdio.h>

#include "gpuwhy.h"

int main(void) {
    unsigned outside = 0, back = 0, i;
    uint64_t last = 0;
    for (i = 0; i < 500000; i++) {
        uint64_t before = gpuwhy_exact_(), now = gpuwhy_now(), after = gpuwhy_exact_();
        /* Off by no more than what would end the trust. */
        outside += now + 3000 < before || now > after + 3000;
        back += now < last;
        last = now;
    }
    printf("%u outside, %u back\n", outside, back);
    return 0;
}
