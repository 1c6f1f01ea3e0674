//! `gpuwhy explain`: what a class of cause means, how it is recognised, how to verify it.

use std::process::ExitCode;

use anyhow::Result;
use gpuwhy_diagnose::classes;
use gpuwhy_engine::explain::{document, list, page};
use gpuwhy_schema::text::Screen;
use gpuwhy_schema::{Class, terminal};
use serde_json::{Value, json};

/// Arguments of `explain`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The class, as verdicts name it, such as cpu_contention; all of them in a list by default
    #[arg(value_name = "CLASS", value_parser = class)]
    class: Option<Class>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Prints the list of classes, or all about one.
pub fn run(args: &Args) -> Result<ExitCode> {
    match (args.class.map(classes::of), args.json) {
        (Some(spec), false) => terminal::show(Screen::new(false).block("", page(spec)))?,
        (Some(spec), true) => terminal::say_json(&format!("{:#}", document(spec)))?,
        (None, false) => terminal::show(Screen::new(false).block("", list()))?,
        (None, true) => {
            let all: Vec<Value> = classes::ALL.iter().map(|spec| document(spec)).collect();
            terminal::say_json(&format!("{:#}", json!({ "classes": all })))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A class by its name.
fn class(text: &str) -> Result<Class, String> {
    text.parse().map_err(|_| {
        let names: Vec<&str> = Class::ALL.iter().map(|class| class.as_str()).collect();
        format!("there is no such class; the classes are {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_that_does_not_exist_is_refused_with_those_that_do() {
        assert_eq!(class("block_io"), Ok(Class::BlockIo));
        assert!(class("disk").unwrap_err().contains("cpu_contention, cpu_steal, cpu_throttling"));
    }
}
