"""The nineteen causes of StriaTrace's Table 4, and where each was tried here.

A cause that a real engine can be given without a GPU was found here, or not, in the trials of its situations. One that was
only replayed or made by a stand-in of a driver was not found; the test that does so is named. The rest needs hardware."""

STORE, SMALL, PLAIN = "vLLM with a store", "vLLM with little memory", "vLLM under a client"
FAULTS = "stand-in: `make bench-faults` (device-slowdown)"

# Number, cause and result in the paper, class here, situations of real engines (program and name), and where else.
ALL = [
    (1, "GPU clock throttling", "general", "gpu_throttling", [], FAULTS),
    (2, "high GPU temperature", "general", "gpu_throttling", [], "stand-in: as 1, by the driver's reasons for its clock"),
    (3, "unstable CPU frequency", "random", "cpu_throttling", [(PLAIN, "a quota")],
     "a quota stands for the slower CPU; clocks need hardware counters"),
    (4, "CRC error", "precise", "gpu_fault", [], "stand-in: test `an_xid_is_a_mark_with_its_number_and_replays_are_counted`"),
    (5, "NIC port down", "precise", "network", [(STORE, "the store's link goes down")], "a virtual link"),
    (6, "NVLink degradation", "precise", "network", [], "needs several GPUs"),
    (7, "huge pages misconfigured", "general", "setting", [], "settings that differ from a reference: `thp.enabled`"),
    (8, "CUDA graphs misconfigured", "general", "setting", [],
     "`--enforce-eager` is told as a setting that costs time; what it costs needs a GPU"),
    (9, "GPU memory misconfigured", "general", "preemptions", [(SMALL, "too little memory")],
     "right: nothing is decided, as the steps had more to do; `gpuwhy requests` counts preemptions"),
    (10, "background process", "random", "cpu_contention", [(PLAIN, "two busy loops"), (PLAIN, "a compiler")], ""),
    (11, "NUMA not configured", "precise", "setting", [], "needs two nodes of memory"),
    (12, "KV store issue", "precise", "own_sleep", [(STORE, "the store sleeps")], "by the store's own process"),
    (13, "token sampling issue", "precise", "engine_software", [(SMALL, "penalties")], ""),
    (14, "GIL contention", "precise", "gil_contention",
     [(PLAIN, "a thread of the engine computes"), (STORE, "a thread of the worker computes")], ""),
    (15, "CUDA graph replay error", "precise", "engine_software", [], "needs a GPU"),
    (16, "kernel launch anomaly", "precise", "engine_software", [], "needs a GPU"),
    (17, "FlashAttention issue", "precise", "kernels that differ", [],
     "replayed: Table 7's two names give 64 -> 128, test `names_that_were_cut_off_tell_that_the_tile_grew_from_64_to_128`"),
    (18, "KV store falls back to a slower one", "precise", "engine_software", [(STORE, "the store computes")], ""),
    (19, "JIT compilation", "precise", "recompilation", [(STORE, "the worker compiles")],
     "by Numba; of Triton the hook alone was tried, which needs no GPU to compile"),
]


def rows(trials):
    """A row for each cause: its trials on real engines, and how often they were told rightly, not, and wrongly."""
    for number, cause, paper, of_class, situations, elsewhere in ALL:
        of = [one for one in trials if (one["program"], one["situation"]) in situations]
        ends = [one["at_end"] for one in of]
        said = sorted({one["late"]["class"] if one["late"] else "nothing" for one in of})
        count = lambda word: ends.count(word) if situations else "-"
        yield {
            "number": number, "cause": cause, "in_the_paper": paper, "class": of_class,
            "trials": len(of) if situations else "-", "right": count("right"), "unknown": count("unknown"),
            "wrong": count("wrong"), "no_effect": count("no effect"), "said": ", ".join(said) or "-",
            "elsewhere": elsewhere or "-",
        }
