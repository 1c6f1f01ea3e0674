"""Situations on real programs: what is said while they last and at their end, against what was done.

A situation is a program, a disturbance of it, and what would be a right answer. A trial is one disturbance of a
running program. What is said counts as right (class and, where somebody did it, culprit), as unknown (nothing, or
"insufficient evidence"), or as wrong (something else, decided). Calm time in between counts false alarms. By how much
the program was slowed stands beside it, by the program's own account; a trial that did not slow it by a tenth is
counted apart ("no effect") unless something wrong was said.
"""

import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import causes as causes_of_engines  # noqa: E402
import descendants  # noqa: E402
import situations  # noqa: E402
from host import Disks, Stolen  # noqa: E402
from watch import Watch  # noqa: E402
from measure import GPUWHY, figure, made, rate, share, write  # noqa: E402

# So many trials each situation has in the end, and so many of them a program goes through before the next one's turn.
TRIALS = int(os.environ.get("TRIALS", "10"))
ROUND = int(os.environ.get("ROUND", "2"))
# So long it begins sessions.
MINUTES = float(os.environ.get("MINUTES", "inf"))
ONLY = [word for word in os.environ.get("ONLY", "").split(",") if word]
SEED = int(os.environ.get("SEED", "1"))
# So long each program is left alone in the end, a part of it after each session's trials.
CALM_MINUTES = float(os.environ.get("CALM_MINUTES", "60"))
RESULT = "bench/results/real.json"
# Judgement was last changed by this commit, and before that by the other one. Sessions of the judge before count as long as there is
# none of their program by the last one, and those of earlier judges do not. What is undecided and as large as before is not told
# since a later commit, which decides nothing otherwise: sessions say how often (`as_before`).
SINCE, BEFORE = "3d99ded", "106f85c"
# What is measured: results that were written meanwhile change the tree, and not that.
COMMIT = made("")["commit"]
# A disturbance that makes units of work less than this many times as long has no effect.
EFFECT = 1.1
# So long a program runs before the first trial, and between two.
WARM_UP, CALM, LASTS = 40.0, 14.0, 8.0


def said(finding):
    """Class, pid, command and number of processes of a finding; none if it was not decided."""
    if not finding or finding["outcome"] != "decided":
        return None
    culprit = finding.get("culprit") or {}
    return {
        "class": finding["class"],
        "pid": culprit.get("pid"),
        "comm": culprit.get("comm"),
        "processes": culprit.get("processes"),
        "confidence": round(finding["confidence"], 3),
    }


def causes(finding):
    """What a finding considers, whether it is decided or not: class, ms a step, and whom."""
    who = lambda cause: (cause.get("culprit") or {}).get("comm")
    return [[one["class"], round(one["excess_ms"], 3), who(one)] for one in (finding or {}).get("causes", [])[:4]]


def parts(finding):
    """Where the time of the slow steps went beyond that of the usual ones, ms a step."""
    return {part: round(ms, 3) for part, ms in (finding or {}).get("parts_ms", {}).items() if abs(ms) >= 0.01}


def judged(one, classes, who, must_name):
    """Whether what was said is right, unknown or wrong. Where nothing is to be decided, or need not be (`None` is among
    the classes), that is right."""
    pids, commands = who
    if one is None:
        return "right" if None in classes or not classes else "unknown"
    if one["class"] not in classes:
        return "wrong"
    named = one["pid"] is not None or one["comm"] is not None
    if named and one["pid"] not in pids and one["comm"] not in commands:
        return "wrong"
    return "right" if named or not must_name else "unknown"


def counted(one, when, classes, must_name):
    """How one verdict of a trial is counted."""
    calm, disturbed = one["took_ms"]
    counts = judged(one[when], classes, one["who"], must_name)
    without = calm and disturbed and disturbed < EFFECT * calm
    return "no effect" if without and classes and counts != "wrong" else counts


def trial(watch, program, disturb, rng):
    """Disturbs once; what was said 2 s after the onset, and at the end."""
    before = len(watch.read())
    begun = time.monotonic_ns()
    who = disturb(program, LASTS, rng)
    ended = time.monotonic_ns()
    time.sleep(CALM)
    early = late = None
    for event in watch.read()[before:]:
        if event["event"] not in ("verdict", "over"):
            continue
        finding = event["finding"]
        if finding["to_ns"] < begun or finding["from_ns"] > ended:
            continue
        if event["at_ns"] <= begun + 2_500_000_000:
            early = finding
        late = finding
    calm, disturbed = program.took(begun - int(8e9), begun), program.took(begun, ended)
    return {
        "who": who, "begun": begun, "ended": ended, "early": said(early), "late": said(late),
        "took_ms": [calm and round(calm, 3), disturbed and round(disturbed, 3)],
        "summary": late["summary"] if late else "nothing",
        "early_summary": early["summary"] if early else "nothing",
        "causes": causes(late), "parts_ms": parts(late), "finding": late,
    }


def of_program(program, watch, plan, rng, host):
    """All trials of a program, in the order of the plan; each as a row of the result. What was told wrongly of the host,
    whose own counters say so too, is wrong, and marked."""
    for name, _, disturb, classes, must_name in plan:
        one = trial(watch, program, disturb, rng)
        row = {
            "program": program.name,
            "situation": name,
            "at_2_s": counted(one, "early", classes, must_name),
            "at_end": counted(one, "late", classes, must_name),
            "took_ms": one["took_ms"],
            "said": one["summary"],
            "early": one["early"],
            "late": one["late"],
            "said_at_2_s": one["early_summary"],
            "causes": one["causes"],
            "parts_ms": one["parts_ms"],
        }
        if row["at_end"] == "wrong":
            row["by_host"] = by_host(one["finding"], host)
        took = "".join(f"{ms:9.2f}" if ms else "        -" for ms in one["took_ms"])
        print(f"{name:<28}{took} ms  2 s: {row['at_2_s']:<8} end: {row['at_end']:<8} {row['said']}", flush=True)
        yield row, (one["begun"], one["ended"])


def alarms(events, disturbed):
    """What was decided of times in which nothing was done."""
    for event in events:
        if event["event"] != "over" or event["finding"]["outcome"] != "decided":
            continue
        finding = event["finding"]
        if not any(finding["to_ns"] >= begin - 1e9 and finding["from_ns"] <= to + 3e9 for begin, to in disturbed):
            yield finding


# Of whom a finding may speak that nothing was done to, and who then did it: its class, and how many times the session's
# mean the host's own counter was.
HOSTS = {"hypervisor_alarms": ("cpu_steal", Stolen, 1), "disk_alarms": ("block_io", Disks, 2)}


def by_host(finding, host):
    """What the host did that a finding tells of, if its own counters say so."""
    for name, (of_class, _, times) in HOSTS.items():
        if finding["class"] == of_class and host[name].rose(finding["from_ns"], finding["to_ns"], times):
            return name
    return None


def told_apart(found, host):
    """The false alarms, and what was told as the host's doing while its own counters say so."""
    told = {"alarms": [], "alarmed_steps": 0, **{name: [] for name in HOSTS}}
    for one in found:
        name = by_host(one, host) or "alarms"
        told[name].append(one["summary"])
        if name == "alarms":
            told["alarmed_steps"] += sum(series["steps"] for series in one["series"])
        print(f"{name.upper()}:", one["summary"], causes(one), parts(one), flush=True)
    return told


def p99_line(trace, disturbed):
    """What StriaTrace's line says of the same trace: how many steps it judged, how many lie above it while nothing was
    done, and in how many of the disturbances at least one does."""
    command = [GPUWHY, "diagnose", trace, "--detector", "p99-line", "--json"]
    said = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=False).stdout)
    above = [one["from_ns"] for one in said["above"]]
    during = [[at for at in above if begin <= at <= to] for begin, to in disturbed]
    calm = [at for at in above if not any(begin - 1e9 <= at <= to + 3e9 for begin, to in disturbed)]
    judged = sum(line["judged"] for line in said["lines"])
    return {"judged": judged, "above_in_calm": len(calm), "disturbances": len(disturbed), "seen": sum(map(bool, during))}


def session(program_of, plan, calm_minutes, rng):
    """Runs a program under `watch` through a plan: its trials, how long it was calm, alarms in that time, and what
    watching took."""
    folder = tempfile.mkdtemp(prefix="gpuwhy-real-", dir="/var/tmp")
    program, watch, rows, disturbed = program_of(folder, GPUWHY), None, [], []
    host = {name: counter() for name, (_, counter, _) in HOSTS.items()}
    try:
        watch = Watch(program, folder)
        program.ready()
        # The warm-up is calm too: what is said of it counts.
        began = time.monotonic()
        time.sleep(WARM_UP)
        for row, during in of_program(program, watch, plan, rng, host):
            rows.append(row)
            disturbed.append(during)
        time.sleep(60 * calm_minutes)
        lasted = time.monotonic() - began
        watch_trace = watch.trace
        events, watch = watch.end(), None
        calm = lasted - sum(to - begin for begin, to in disturbed) / 1e9
        ended = [event for event in events if event["event"] == "ended"]
        line = {"p99_line": p99_line(watch_trace, disturbed)} if program.has_batches else {}
        return {
            **line, "program": program.name, "figure": program.figure, **made(""), "commit": COMMIT, "calm_hours": round(calm / 3600, 5),
            **told_apart(alarms(events, disturbed), host), "stolen": host["hypervisor_alarms"].between(),
            "ms_a_disk_request": host["disk_alarms"].between(),
            "machine_share": [one["machine_share"] for one in ended], "as_before": [one["as_before"] for one in ended],
            "trials": rows,
        }
    finally:
        if watch:
            watch.end()
        program.end()
        for counter in host.values():
            counter.end()
        if not os.environ.get("KEEP"):
            shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def is_since(commit, build):
    """Whether a build has a commit. One that is measured now has all of them."""
    command = ["git", "merge-base", "--is-ancestor", commit, build.rstrip("+")]
    return build == COMMIT or subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0


def of_last_judge(sessions):
    return [one for one in sessions if is_since(SINCE, one["commit"])]


def that_count(sessions):
    """Those of the last judge, and of programs that it has not met those of the judge before."""
    last = of_last_judge(sessions)
    met = {one["program"] for one in last}
    return [one for one in sessions if is_since(BEFORE, one["commit"]) and one["program"] not in met] + last


def before():
    """The sessions so far that count."""
    try:
        with open(RESULT) as file:
            return that_count(json.load(file).get("sessions", []))
    except FileNotFoundError:
        return []


def summary(rows):
    """How often each situation was told right, not, and wrong."""
    for program, situation in sorted({(row["program"], row["situation"]) for row in rows}):
        of = [row for row in rows if (row["program"], row["situation"]) == (program, situation)]
        counts = {
            f"{word}_{when}".replace(" ", "_"): sum(row[when] == word for row in of)
            for when in ("at_2_s", "at_end") for word in ("right", "unknown", "wrong", "no effect")
        }
        yield {"program": program, "situation": situation, "trials": len(of), **counts}


def calm_of(sessions):
    """How long each program was calm, and what was said of that time."""
    for name in sorted({one["program"] for one in sessions}):
        of = [one for one in sessions if one["program"] == name]
        alarms = [alarm for one in of for alarm in one["alarms"]]
        yield {"program": name, "calm_hours": round(sum(one["calm_hours"] for one in of), 3), "alarms": len(alarms)}


def result(sessions):
    rows = [row for one in sessions for row in one["trials"]]
    alarms = [alarm for one in sessions for alarm in one["alarms"]]
    calm = sum(one["calm_hours"] for one in sessions)
    ends = [row["at_end"] for row in rows if row["at_end"] != "no effect"]
    named = [row for row in rows if row["late"] and row["late"]["comm"] is not None]
    of_last = sum(len(one["trials"]) for one in of_last_judge(sessions))
    figures = {
        "of_last_judge": share(of_last, len(rows)),
        "situations": figure([len({(row["program"], row["situation"]) for row in rows})]),
        "situations_right": share(ends.count("right"), len(ends)),
        "situations_unknown": share(ends.count("unknown"), len(ends)),
        "situations_wrong": share(ends.count("wrong"), len(ends)),
        # Of these, what the host's own counters bear out; sessions before it was marked have none.
        "situations_wrong_by_host": figure([sum(row.get("by_host") is not None for row in rows)]),
        "wrong_at_2_s": share([row["at_2_s"] for row in rows].count("wrong"), len(rows)),
        "without_effect": figure([len(rows) - len(ends)]),
        "false_alarms_per_hour": rate(len(alarms), calm),
        # A session before one of them was told apart counts all its alarms as false.
        **{name: figure([sum(len(one.get(name, [])) for one in sessions)]) for name in HOSTS},
        "calm_hours": figure([calm]),
    }
    if named:
        figures["culprit_precision"] = share(sum(row["at_end"] == "right" for row in named), len(named))
    for name in sorted({one["figure"] for one in sessions}):
        took = [share for one in sessions if one["figure"] == name for share in one["machine_share"]]
        if took:
            figures[f"machine_share_{name}"] = figure(took)
    lines = [one["p99_line"] for one in sessions if "p99_line" in one]
    if lines:
        of_lines = lambda what: sum(line[what] for line in lines)
        of_engines = [one for one in sessions if "p99_line" in one]
        hours = sum(one["calm_hours"] for one in of_engines)
        # Of more to do nothing need be told.
        told_of = {(program.name, name) for name, program, _, classes, _ in situations.ALL if classes and None not in classes}
        slowed = [row for one in of_engines for row in one["trials"] if (row["program"], row["situation"]) in told_of]
        slowed = [row for row in slowed if row["at_end"] != "no effect"]
        figures["engine_recall"] = share(sum(row["said"] != "nothing" for row in slowed), max(1, len(slowed)))
        figures["engine_false_per_hour"] = rate(sum(len(one["alarms"]) for one in of_engines), hours)
        # Sessions before these were counted have none.
        counts = [one for one in of_engines if "alarmed_steps" in one]
        judged = max(1, sum(one["p99_line"]["judged"] for one in counts))
        if counts:
            figures["engine_false_alert_rate"] = share(sum(one["alarmed_steps"] for one in counts), judged)
            above = sum(one["p99_line"]["above_in_calm"] for one in counts)
            figures["p99_line_false_alert_rate"] = share(above, judged)
        figures["p99_line_seen"] = share(of_lines("seen"), max(1, of_lines("disturbances")))
        figures["p99_line_false_per_hour"] = rate(of_lines("above_in_calm"), hours)
    # Of several builds, the last one's name.
    of = made(f"make bench-real, TRIALS={TRIALS} CALM_MINUTES={CALM_MINUTES:g}, in parts")
    of["commit"] = COMMIT
    return {"made": of, "figures": figures, "situations": list(summary(rows)), "calm": list(calm_of(sessions)),
            "causes": list(causes_of_engines.rows(rows)), "sessions": sessions}


def wanted():
    """The programs with the situations that are to be tried."""
    by_program = {}
    for situation in situations.ALL:
        program = situation[1]
        if not ONLY or any(word in f"{program.name}: {situation[0]}" for word in ONLY):
            by_program.setdefault(program, []).append(situation)
    return by_program


def missing(plan, program, sessions):
    """What a session of a program is to do: trials, and minutes of calm."""
    of = [one for one in sessions if one["program"] == program.name]
    tried = [row["situation"] for one in of for row in one["trials"]]
    trials = [one for one in plan for _ in range(min(ROUND, TRIALS - tried.count(one[0])))]
    calm = CALM_MINUTES - 60 * sum(one["calm_hours"] for one in of)
    return trials, max(0, min(calm, CALM_MINUTES * ROUND / TRIALS))


def main():
    # A shell starts what it runs in the background with the first ignored, and `watch` keeps that for what it runs.
    for told in (signal.SIGINT, signal.SIGTERM):
        signal.signal(told, signal.default_int_handler)
    descendants.adopt()
    # Without it loaders and engines are strangers: what is said of them is not what a user would be told.
    package = os.path.join(os.path.dirname(os.path.realpath(GPUWHY)), "gpuwhy-python")
    if not os.path.isdir(package):
        sys.exit(f"bench real: there is no {package}; `make release` makes it")
    rng = random.Random(SEED)
    began = time.monotonic()
    counted = not COMMIT.endswith("+")
    # What is not written down is no continuation of what was.
    sessions = before() if counted else []
    if not counted:
        print("The tree differs from its commit: what follows is not written down.", flush=True)
    done, work = len(sessions), True
    while work:
        work = False
        for program, plan in wanted().items():
            trials, calm = missing(plan, program, of_last_judge(sessions))
            if time.monotonic() - began > 60 * MINUTES or not trials and calm < 1:
                continue
            rng.shuffle(trials)
            sessions.append(session(program, trials, calm, rng))
            work = True
            if counted:
                write("real", result(that_count(sessions)))
    if len(sessions) == done:
        why = f"{TRIALS} trials of each are in {RESULT} already" if wanted() else f"no situation here is named {' or '.join(ONLY)}"
        print(f"Nothing was done: {why}.", flush=True)


try:
    main()
finally:
    # A busy loop that is left running disturbs whatever is measured next.
    descendants.kill()
