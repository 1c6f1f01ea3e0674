//! The command's fate is its own: the situations of `gpuwhy_testkit::fate`, each once behind `record` and
//! `watch`, which need root, and behind a program that supervises as they do and records nothing.

use gpuwhy_testkit::fate::{Situation, Try, Wrapper, situation};

use crate::{built, folder, may_record};

/// Fails if a situation does not come out as without us; says so if it cannot be tried here.
fn is_kept(wrapper: &Wrapper, situation: &Situation, seed: u64) {
    let (_keep, folder) = folder();
    let this = Try { wrapper, folder: &folder, seed };
    match (situation.run)(&this) {
        Ok(()) => {}
        Err(why) if why.starts_with("skipped: ") => println!("{why}"),
        Err(why) => panic!("{}, {}, seed {seed}: {why}", wrapper.name(), situation.name),
    }
}

/// Behind the program that needs no root.
fn supervised(name: &str) {
    let wrapper = Wrapper::Supervise(built("gpuwhy-bench"));
    (1..=3).for_each(|seed| is_kept(&wrapper, situation(name), seed));
}

/// Behind `record` and `watch`.
fn recorded(name: &str) {
    if !may_record() {
        return;
    }
    let own = || env!("CARGO_BIN_EXE_gpuwhy").into();
    for wrapper in [Wrapper::Record(own()), Wrapper::Watch(own())] {
        (1..=2).for_each(|seed| is_kept(&wrapper, situation(name), seed));
    }
}

/// A situation as two tests: with a recorder as root, and with none as anybody.
macro_rules! situations {
    ($($root:ident, $twin:ident: $name:literal;)+) => {$(
        #[test]
        fn $root() {
            recorded($name);
        }

        #[test]
        fn $twin() {
            supervised($name);
        }
    )+};
}

situations! {
    root_the_commands_status_is_ours, the_commands_status_is_ours:
        "it exits with a status from 0 to 255";
    root_the_commands_signal_is_128_and_its_number, the_commands_signal_is_128_and_its_number:
        "it is ended by a signal of its own";
    root_a_command_that_cannot_be_started_is_126_or_127, a_command_that_cannot_be_started_is_126_or_127:
        "there is no such program, or it cannot be executed";
    root_a_signal_to_gpuwhy_reaches_the_command_once, a_signal_to_us_reaches_the_command_once:
        "a signal is sent to gpuwhy";
    root_a_signal_that_the_command_ignores_does_not_end_gpuwhy, a_signal_that_the_command_ignores_does_not_end_us:
        "a signal that it ignores is sent to gpuwhy";
    root_a_terminals_interrupt_comes_once, a_terminals_interrupt_comes_once:
        "a signal is sent to both by a terminal";
    root_a_stopped_job_gives_the_terminal_back, a_stopped_job_gives_the_terminal_back:
        "^Z and fg in a terminal";
    root_a_stopped_recorder_does_not_stop_the_command, a_stopped_supervisor_does_not_stop_the_command:
        "gpuwhy is stopped and goes on";
    root_the_first_process_of_a_container_reaps_and_passes_signals_on,
    the_first_process_of_a_container_reaps_and_passes_signals_on:
        "gpuwhy is the first process of a container";
    root_standard_input_passes, standard_input_passes: "it reads standard input";
    root_standard_output_passes, standard_output_passes: "it writes standard output";
    root_standard_error_passes, standard_error_passes: "it writes standard error";
    root_the_command_inherits_what_it_would_without_us, the_command_inherits_what_it_would_without_us:
        "descriptors, signal mask and ignored signals";
    root_a_terminal_stays_in_the_mode_that_the_command_left, a_terminal_stays_in_the_mode_that_the_command_left:
        "it leaves its terminal in raw mode";
    root_a_killed_recorder_does_not_end_the_command, a_killed_supervisor_does_not_end_the_command:
        "gpuwhy is killed while it runs";
    root_a_recorder_killed_early_leaves_nobody_waiting, a_supervisor_killed_early_leaves_nobody_waiting:
        "gpuwhy is killed before it begins";
}

#[test]
fn root_an_output_that_cannot_be_made_is_told_before_the_command_begins() {
    recorded("the output cannot be written from the start");
}

#[test]
fn root_a_full_disk_does_not_end_the_command() {
    recorded("the disk of the trace gets full");
}

#[test]
fn root_a_failing_disk_does_not_end_the_command() {
    recorded("the disk of the trace fails");
}
