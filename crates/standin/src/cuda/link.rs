//! Linking images from parts: text, and fat binaries that hold some. What is linked is text again.

use std::ffi::{c_int, c_uint};

use gpuwhy_gpubpf::image::is_binary;

use super::code::Link;
use super::driver::{Handle, driver, handle};
use super::execute::{executes, file, memory, text_of};
use super::{Code, Status, status};
use crate::c::{Out, Text};

/// `CUjitInputType`
const PTX: c_int = 1;
const FATBINARY: c_int = 2;

fn add(link: Handle, kind: c_int, bytes: Vec<u8>) -> Status {
    if !executes() || !matches!(kind, PTX | FATBINARY) || is_binary(&bytes) != (kind == FATBINARY) {
        return Err(Code::InvalidValue);
    }
    let text = text_of(bytes)?;
    let mut driver = driver()?;
    let link = driver.code.links.get_mut(&link).ok_or(Code::InvalidHandle)?;
    link.parts.push(text);
    Ok(())
}

/// The parts as one module. What is visible in several of them is not linked.
fn linked(parts: &[String]) -> Result<Box<[u8]>, Code> {
    let heads = [".version", ".target", ".address_size"];
    let is_head = |line: &&str| heads.iter().any(|head| line.trim_start().starts_with(head));
    let mut seen = std::collections::BTreeSet::new();
    for line in parts.iter().flat_map(|part| part.lines()).filter(|l| l.starts_with(".visible")) {
        if !seen.insert(line) {
            return Err(Code::InvalidPtx);
        }
    }
    let (first, others) = parts.split_first().ok_or(Code::InvalidValue)?;
    let others = others.iter().flat_map(|part| part.lines()).filter(|line| !is_head(line));
    let lines: Vec<&str> = first.lines().chain(others).collect();
    Ok((lines.join("\n") + "\n\0").into_bytes().into())
}

exported! {
    fn cuLinkCreate_v2(_count: c_uint, _options: Out<c_int>, _values: Out<usize>, to: Out<Handle>) {
        let link = handle();
        driver()?.code.links.insert(link, Link::default());
        Ok(to.put(link)?)
    }

    fn cuLinkAddData_v2(
        link: Handle, kind: c_int, data: Out<u8>, _bytes: usize, _name: Text, _count: c_uint,
        _options: Out<c_int>, _values: Out<usize>,
    ) {
        add(link, kind, memory(data)?)
    }

    fn cuLinkAddFile_v2(
        link: Handle, kind: c_int, path: Text, _count: c_uint, _options: Out<c_int>, _values: Out<usize>,
    ) {
        add(link, kind, file(&path.get()?)?)
    }

    fn cuLinkComplete(link: Handle, to: Out<usize>, bytes: Out<usize>) {
        let mut driver = driver()?;
        let link = driver.code.links.get_mut(&link).ok_or(Code::InvalidHandle)?;
        let linked = link.linked.insert(linked(&link.parts)?);
        bytes.put(linked.len())?;
        Ok(to.put(linked.as_ptr() as usize)?)
    }

    fn cuLinkDestroy(link: Handle) {
        driver()?.code.links.remove(&link).map(drop).ok_or(Code::InvalidHandle)
    }
}
