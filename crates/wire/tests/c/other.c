/* A second file of the same program. */
#include "gpuwhy.h"

#ifdef __cplusplus
extern "C"
#endif
void other(const struct gpuwhy_step *step) {
    struct gpuwhy_phase phase = gpuwhy_phase_begin(step, "load");
    gpuwhy_phase_end(&phase);
    phase = gpuwhy_phase_begin(0, "apart");
    gpuwhy_phase_end(&phase);
}
