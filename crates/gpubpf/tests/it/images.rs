//! Fat binaries as NVIDIA's `fatbinary` 13.0 writes them, and damaged ones.
//!
//! The files of `tests/fatbin` hold `kernels.ptx` and what `ptxas` made of it:
//!
//! ```text
//! ptxas -arch=sm_80 kernels.ptx -o 80.cubin; ptxas -arch=sm_90a kernels.ptx -o 90a.cubin
//! ptxas -arch=sm_90 -lineinfo kernels.ptx -o 90.cubin
//! images="--image3=kind=elf,sm=80,file=80.cubin --image3=kind=ptx,sm=80,file=kernels.ptx --image3=kind=elf,sm=90a,file=90a.cubin"
//! fatbinary --create=zstd.fatbin -64 --compress-mode=size $images
//! fatbinary --create=lz4.fatbin -64 --compress-mode=speed $images
//! fatbinary --create=lineinfo.fatbin -64 --image3=kind=elf,sm=90,file=90.cubin
//! fatbinary --create=family.fatbin -64 --image3=kind=ptx,sm=100f,file=kernels.ptx \
//!     --image3=kind=ptx,sm=90a,file=kernels.ptx --ident=foo.cu -cmdline "-O3 --x"
//! ```

use gpuwhy_gpubpf::image::{Content, Coverage, Cubin, Image, Images, Way, ptx_for};
use gpuwhy_gpubpf::ptx::Module;

const ZSTD: &[u8] = include_bytes!("../fatbin/zstd.fatbin");
const LZ4: &[u8] = include_bytes!("../fatbin/lz4.fatbin");
const FAMILY: &[u8] = include_bytes!("../fatbin/family.fatbin");
const LINEINFO: &[u8] = include_bytes!("../fatbin/lineinfo.fatbin");
/// The PTX as `fatbinary` puts it in: without white space at the beginnings of lines.
fn text() -> String {
    let lines = include_str!("../fatbin/kernels.ptx").lines().map(str::trim_start);
    lines.flat_map(|line| [line, "\n"]).collect()
}

fn images(bytes: &[u8]) -> Vec<Image> {
    Images::new(bytes).collect::<Result<_, _>>().expect("the file is whole")
}

/// Each image: unit, content, architecture, bytes that it takes and has, name and options.
fn table(bytes: &[u8]) -> String {
    let line = |image: &Image| {
        let Image { unit, content, arch, stored, name, options, .. } = image;
        format!("{unit} {content:?} {arch} {stored} {} {name} {options}", image.bytes.len())
            .trim_end()
            .to_owned()
    };
    images(bytes).iter().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn images_of_each_compression_are_what_was_put_in() {
    let ptx = text().len();
    assert_eq!(
        table(ZSTD),
        format!("0 Cubin sm_80 936 4584\n0 Ptx sm_80 208 {ptx}\n0 Cubin sm_90a 976 5072")
    );
    assert_eq!(
        table(LZ4),
        format!("0 Cubin sm_80 4584 4584\n0 Ptx sm_80 248 {ptx}\n0 Cubin sm_90a 5072 5072")
    );
    assert_eq!(
        table(FAMILY),
        format!("0 Ptx sm_100f 216 {ptx} foo.cu -O3 --x\n0 Ptx sm_90a 216 {ptx} foo.cu -O3 --x")
    );
    for (one, other) in images(ZSTD).iter().zip(images(LZ4)) {
        assert_eq!(one.bytes, other.bytes, "{:?} {}", one.content, one.arch);
    }
    assert_eq!(images(ZSTD)[1].bytes, text().as_bytes());
}

#[test]
fn containers_follow_each_other_with_zeros_between() {
    let mut both = FAMILY.to_vec();
    both.extend([0; 24]);
    both.extend(LINEINFO);
    both.extend([0; 5]);
    let units: Vec<usize> = images(&both).iter().map(|image| image.unit).collect();
    assert_eq!(units, [0, 0, 1]);
}

#[test]
fn machine_code_names_its_kernels_and_carries_its_ptx_where_lines_were_asked_for() {
    let with = Cubin::read(&images(LINEINFO)[0].bytes).unwrap();
    assert_eq!((with.arch.to_string().as_str(), with.relocatable), ("sm_90", false));
    let mut kernels = with.kernels.clone();
    kernels.sort();
    assert_eq!(kernels, ["_Z4copyPKfPf", "_Z4zeroPf"]);
    let text = with.text.expect("the PTX is there");
    let module = Module::read(&text).expect("and can be read");
    let names: Vec<&str> = module.functions().iter().map(|f| f.name.as_str()).collect();
    assert_eq!(names, ["_Z4copyPKfPf", "_Z4zeroPf"]);
    let without = Cubin::read(&images(ZSTD)[0].bytes).unwrap();
    assert_eq!((without.arch.to_string().as_str(), without.text), ("sm_80", None));
    assert_eq!(without.kernels.len(), 2);
}

/// How the kernel `copy` of a fat binary is reached on a device, by which PTX, beside which machine code.
fn reached(bytes: &[u8], device: u32) -> (Way, String, String) {
    let mut coverage = Coverage::new(device);
    for image in images(bytes) {
        coverage.image(&image).expect("the image can be read");
    }
    let unit = coverage.unit();
    assert_eq!(unit.len(), 2);
    let of = |arch: Option<gpuwhy_gpubpf::image::Arch>| arch.map_or("-".into(), |a| a.to_string());
    (unit[0].way, of(unit[0].ptx), of(unit[0].machine))
}

#[test]
fn a_kernel_is_reached_by_what_the_device_can_run() {
    for (what, bytes, device, way, ptx, machine) in [
        ("its own PTX", ZSTD, 80, Way::Ptx, "sm_80", "sm_80"),
        ("older PTX beside machine code of its own", ZSTD, 90, Way::Ptx, "sm_80", "sm_90"),
        ("PTX for a later device", ZSTD, 120, Way::Ptx, "sm_80", "-"),
        ("newer than the device", ZSTD, 75, Way::NotForDevice, "-", "-"),
        ("PTX within machine code", LINEINFO, 90, Way::PtxInCubin, "-", "sm_90"),
        ("PTX of another family", FAMILY, 120, Way::NotForDevice, "-", "-"),
        ("PTX of the family", FAMILY, 103, Way::Ptx, "sm_100f", "-"),
        ("PTX for this device alone", FAMILY, 90, Way::Ptx, "sm_90a", "-"),
    ] {
        let machine = if machine == "sm_90" && bytes == ZSTD { "sm_90a" } else { machine };
        assert_eq!(reached(bytes, device), (way, ptx.into(), machine.into()), "{what}");
    }
    // Machine code alone: the same without its PTX.
    let mut coverage = Coverage::new(90);
    for image in images(ZSTD).iter().filter(|image| image.content == Content::Cubin) {
        coverage.image(image).unwrap();
    }
    let unit = coverage.unit();
    assert_eq!((unit[0].way, unit[0].older()), (Way::MachineCode, false));
    assert_eq!(coverage.unit(), [], "the next unit begins empty");
}

#[test]
fn the_ptx_that_a_driver_would_compile_is_taken_from_what_it_is_given() {
    let of = |bytes: &[u8], device: u32| match ptx_for(bytes, device) {
        Ok(chosen) => {
            assert!(Module::read(&chosen.text).is_ok());
            let machine = chosen.machine.map_or("-".into(), |arch| arch.to_string());
            format!("{} instead of {machine}", chosen.arch)
        }
        Err(error) => error.to_string(),
    };
    assert_eq!(of(ZSTD, 90), "sm_80 instead of sm_90a");
    assert_eq!(of(ZSTD, 120), "sm_80 instead of -");
    assert_eq!(of(ZSTD, 75), "nothing in it is for sm_75; it holds sm_80, sm_80, sm_90a");
    assert_eq!(of(LINEINFO, 90), "sm_90 instead of sm_90");
    assert_eq!(of(FAMILY, 90), "sm_90a instead of -");
    let cubin = |bytes: &[u8]| images(bytes).remove(0).bytes;
    assert_eq!(of(&cubin(LINEINFO), 90), "sm_90 instead of sm_90");
    assert_eq!(
        of(&cubin(ZSTD), 80),
        "it holds machine code for sm_80 alone: a probe is put into PTX"
    );
    assert_eq!(of(&cubin(ZSTD), 90), "nothing in it is for sm_90; it holds sm_80");
    let both = [FAMILY, LINEINFO].concat();
    assert_eq!(of(&both, 90), "it holds 2 fat binaries, each of which a program loads by itself");
    assert_eq!(of(&ZSTD[..300], 90), "a damaged fat binary");
}

/// The fault of bytes, with the images before it.
fn fault(bytes: &[u8]) -> String {
    let mut images = Images::new(bytes);
    let fault = images.by_ref().find_map(Result::err).expect("a fault").to_string();
    assert!(images.next().is_none(), "nothing is read behind a fault");
    fault
}

#[test]
fn what_is_damaged_is_named_with_its_place() {
    let with = |at: usize, bytes: &[u8]| {
        let mut damaged = ZSTD.to_vec();
        damaged[at..at + bytes.len()].copy_from_slice(bytes);
        damaged
    };
    let second = 16 + 64 + 936;
    for (what, bytes, says) in [
        ("cut off in an image", ZSTD[..500].to_vec(), "byte 16: cut off: 516 bytes are missing"),
        ("cut off in its header", ZSTD[..40].to_vec(), "byte 16: cut off: 40 bytes are missing"),
        ("something else", b"\x7fELF\x02\x01\x01\0".to_vec(), "byte 0: no fat binary begins here"),
        ("a later version", with(4, &[2]), "byte 0: a fat binary of version 2"),
        ("an endless container", with(8, &[0xff; 8]), "a size of 18446744073709551615 bytes"),
        (
            "an endless header",
            with(20, &[0xff; 4]),
            "byte 16: an image's header of 4294967295 bytes",
        ),
        (
            "an endless image",
            with(24, &[0xff; 8]),
            "byte 16: an image of 18446744073709551615 bytes",
        ),
        ("an image beyond its container", with(24, &[0, 0x10]), "its fat binary ends at byte 2344"),
        ("damaged zstd", with(16 + 64, &[0; 8]), "byte 16: zstd: "),
        ("a wrong size", with(16 + 56, &[1, 0]), "byte 16: 1 bytes are said to be there"),
        ("more than is there", with(16 + 16, &[0xff; 4]), "4294967295 compressed bytes in 936"),
        ("an endless size", with(16 + 56, &[0xff; 8]), "at most 1073741824 are read"),
        ("options elsewhere", with(second + 20, &[0xff, 0xff]), "options at byte 65535"),
    ] {
        let said = fault(&bytes);
        assert!(said.contains(says), "{what}: {said}");
    }
    // LZ4 whose size is a lie takes no memory for it.
    let mut lie = LZ4.to_vec();
    let ptx = 16 + 64 + 4584;
    lie[ptx + 56..ptx + 60].copy_from_slice(&[0, 0, 0, 0x20]);
    assert!(fault(&lie).contains("bytes of LZ4 cannot hold 536870912"), "{}", fault(&lie));
}

#[test]
fn a_cubin_that_is_damaged_is_an_error() {
    let whole = &images(LINEINFO)[0].bytes;
    assert!(Cubin::read(&[]).is_err());
    assert_eq!(
        Cubin::read(&std::fs::read("/proc/self/exe").unwrap()).unwrap_err().to_string(),
        format!(
            "an ELF object for machine {}, not for NVIDIA's devices (190)",
            if cfg!(target_arch = "x86_64") { 62 } else { 183 }
        )
    );
    for length in (0..whole.len()).step_by(7) {
        let _ = Cubin::read(&whole[..length]);
    }
}
