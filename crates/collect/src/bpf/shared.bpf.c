// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* No programs: the object that the maps shared by all probes are created from. */
#include "gpuwhy.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";
