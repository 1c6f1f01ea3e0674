//! The bytes of an image that a program hands to the driver by its address alone.
//!
//! They are copied by the kernel (`write`), so that an address which leads nowhere is an error here and not the end of
//! the program: the driver may refuse what we would have to read.

use core::ffi::{CStr, c_char, c_void};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;

use gpuwhy_wire::images::{MAX_IMAGE, close_image, open_image};

/// What `__cudaFatCudaBinary` begins with; the address of a fat binary stands behind it.
const WRAPPER: [u8; 4] = 0x4662_43b1_u32.to_le_bytes();
/// What a fat binary begins with.
const FATBIN: [u8; 4] = 0xba55_ed50_u32.to_le_bytes();
const ELF: [u8; 4] = *b"\x7fELF";
/// Text is copied by so many bytes at a time until it ends.
const PIECE: u64 = 64 << 10;
/// The head of any of them.
const HEAD: u64 = 64;

/// A copy of the image at an address, sealed; `None` if it is none that we know.
pub fn at_address(image: *const c_void) -> Option<File> {
    let file = open_image().ok()?;
    let mut start = image as u64;
    let mut head = head(&file, start)?;
    if head[..4] == WRAPPER {
        start = u64::from_le_bytes(head[8..16].try_into().ok()?);
        head = self::head(&file, start)?;
        if head[..4] != FATBIN {
            return None;
        }
    }
    match head[..4].try_into().ok()? {
        FATBIN => {
            let header = u16::from_le_bytes(head[6..8].try_into().ok()?);
            let body = u64::from_le_bytes(head[8..16].try_into().ok()?);
            copy_to(&file, start, body.checked_add(header.into())?)?;
        }
        ELF => elf(&file, start, &head)?,
        _ => text(&file, start)?,
    }
    close_image(&file).ok()?;
    Some(file)
}

/// A copy of so many bytes at an address, sealed.
pub fn of_size(start: *const c_void, bytes: u64) -> Option<File> {
    let file = open_image().ok()?;
    copy_to(&file, start as u64, bytes)?;
    close_image(&file).ok()?;
    Some(file)
}

/// A copy of the image in a file.
pub fn in_file(path: *const c_char) -> Option<File> {
    if path.is_null() {
        return None;
    }
    // SAFETY: the driver's documentation asks for a C string.
    let path = unsafe { CStr::from_ptr(path) };
    let file = open_image().ok()?;
    let from = File::open(std::ffi::OsStr::from_bytes(path.to_bytes())).ok()?;
    if !from.metadata().ok()?.is_file() {
        return None;
    }
    io::copy(&mut from.take(MAX_IMAGE + 1), &mut &file).ok()?;
    close_image(&file).ok()?;
    Some(file)
}

/// The first bytes at an address; of those behind its end none are there.
fn head(file: &File, start: u64) -> Option<[u8; HEAD as usize]> {
    file.set_len(0).ok()?;
    let copied = copy(file, start, 0, HEAD);
    let mut head = [0; HEAD as usize];
    file.read_exact_at(&mut head[..copied as usize], 0).ok()?;
    (copied >= 4).then_some(head)
}

/// Copies memory to the place `at` of the file. How many bytes there were.
fn copy(file: &File, start: u64, at: u64, bytes: u64) -> u64 {
    let mut done = 0;
    while done < bytes {
        let from = (start + at + done) as *const c_void;
        let place = (at + done) as libc::off_t;
        // SAFETY: the kernel reads the memory, and says so where it cannot.
        let n = unsafe { libc::pwrite(file.as_raw_fd(), from, (bytes - done) as usize, place) };
        match n {
            1.. => done += n as u64,
            _ if n < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            _ => break,
        }
    }
    done
}

/// Copies so many bytes from the image's beginning, or fails.
fn copy_to(file: &File, start: u64, bytes: u64) -> Option<()> {
    start.checked_add(bytes)?;
    if bytes > MAX_IMAGE || copy(file, start, 0, bytes) != bytes {
        return None;
    }
    // The head may have reached further.
    file.set_len(bytes).ok()
}

/// An ELF file of 64 bits ends with the last of its tables and sections.
fn elf(file: &File, start: u64, head: &[u8; HEAD as usize]) -> Option<()> {
    let half = |at: usize| u64::from(u16::from_le_bytes([head[at], head[at + 1]]));
    let word =
        |bytes: &[u8], at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let (programs, sections) = (word(head, 32)?, word(head, 40)?);
    let (each, many) = (half(58), half(60));
    if head[4] != 2 || head[5] != 1 || each < 64 {
        return None;
    }
    let table = sections.checked_add(each * many)?;
    let mut end = table.max(programs.checked_add(half(54) * half(56))?).max(HEAD);
    copy_to(file, start, end)?;
    let mut section = [0; 64];
    for number in 0..many {
        file.read_exact_at(&mut section, sections + each * number).ok()?;
        let kind = u32::from_le_bytes(section[4..8].try_into().ok()?);
        // SHT_NOBITS takes no bytes.
        if kind != 8 {
            end = end.max(word(&section, 24)?.checked_add(word(&section, 32)?)?);
        }
    }
    copy_to(file, start, end)
}

/// Text ends with a zero.
fn text(file: &File, start: u64) -> Option<()> {
    let mut at = 0;
    let mut piece = vec![0; PIECE as usize];
    while at < MAX_IMAGE {
        let copied = copy(file, start, at, PIECE);
        let piece = &mut piece[..copied as usize];
        file.read_exact_at(piece, at).ok()?;
        if let Some(zero) = piece.iter().position(|byte| *byte == 0) {
            return file.set_len(at + zero as u64).ok();
        }
        if copied < PIECE {
            return None;
        }
        at += copied;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copied(bytes: &[u8]) -> Option<Vec<u8>> {
        let file = at_address(bytes.as_ptr().cast())?;
        let mut out = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut out, 0).unwrap();
        Some(out)
    }

    #[test]
    fn text_is_copied_up_to_its_zero() {
        assert_eq!(copied(b".version 8.0\n\0rest").unwrap(), b".version 8.0\n");
        let long = [b"//".repeat(100_000), vec![0, b'x']].concat();
        assert_eq!(copied(&long).unwrap(), long[..200_000]);
        assert!(copied(b"\0rest").is_none(), "an image of no bytes");
    }

    #[test]
    fn a_fat_binary_is_as_long_as_its_header_says_also_behind_its_wrapper() {
        let mut fatbin = FATBIN.to_vec();
        fatbin.extend([1, 0, 16, 0]);
        fatbin.extend(24_u64.to_le_bytes());
        fatbin.extend([7; 24]);
        let mut memory = fatbin.clone();
        memory.extend([9; 64]);
        assert_eq!(copied(&memory).unwrap(), fatbin);
        let mut wrapper = WRAPPER.to_vec();
        wrapper.extend([1, 0, 0, 0]);
        wrapper.extend((memory.as_ptr() as u64).to_le_bytes());
        wrapper.extend([0; 64]);
        assert_eq!(copied(&wrapper).unwrap(), fatbin);
        // One that leads nowhere, and one that leads to no fat binary.
        for address in [16_u64, wrapper.as_ptr() as u64] {
            wrapper[8..16].copy_from_slice(&address.to_le_bytes());
            assert!(copied(&wrapper).is_none());
        }
        // A size beyond what is mapped, and beyond what is handed over.
        for size in [1_u64 << 29, u64::MAX - 3] {
            memory[8..16].copy_from_slice(&size.to_le_bytes());
            assert!(copied(&memory).is_none(), "{size}");
        }
    }

    #[test]
    fn an_elf_file_is_copied_whole() {
        let own = std::fs::read("/proc/self/exe").unwrap();
        let copy = copied(&own).unwrap();
        assert!(
            copy == own[..copy.len()] && own.len() - copy.len() < 64,
            "{} {}",
            copy.len(),
            own.len()
        );
        let mut cut = own[..4096].to_vec();
        cut[40..48].copy_from_slice(&(1_u64 << 40).to_le_bytes());
        assert!(copied(&cut).is_none());
    }

    #[test]
    fn an_address_that_leads_nowhere_is_no_image() {
        assert!(at_address(core::ptr::null()).is_none());
        assert!(at_address(0xdead_0000_0000 as *const c_void).is_none());
    }

    #[test]
    fn a_file_is_copied_and_what_is_none_is_not() {
        let dir = std::env::temp_dir();
        let path = std::ffi::CString::new(dir.as_os_str().as_bytes()).unwrap();
        assert!(in_file(path.as_ptr()).is_none());
        let own = in_file(c"/proc/self/exe".as_ptr()).unwrap();
        assert_eq!(
            own.metadata().unwrap().len(),
            std::fs::metadata("/proc/self/exe").unwrap().len()
        );
        assert!(in_file(c"/nowhere".as_ptr()).is_none() && in_file(core::ptr::null()).is_none());
    }
}
