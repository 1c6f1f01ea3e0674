//! What Sanitizer does with machine code, done with PTX: calls of a patch's functions at places of a kernel. For the simulator,
//! and so for whoever wants to see what a patch does without a device.

use std::collections::{BTreeSet, HashMap};

use super::access::{ATOMIC, LOAD, STORE};
use super::patch::Spot;
use super::points::points;
use super::write::{Insertion, Site};
use super::{How, Refusal, needs};
use crate::attach::{Attach, Moment, What};
use crate::ptx::Module;

/// The variable in constant memory that has the address which the launch is given.
pub const GIVEN: &str = "gpuwhy_patch_given";

impl Spot {
    /// What a program at such a place would be attached to.
    fn attach(self) -> Attach {
        let before =
            |what| Attach::Instructions { what, moment: Moment::Before, kernel: "*".into() };
        match self {
            Self::Enter => Attach::Entry("*".into()),
            Self::Exit => Attach::Return("*".into()),
            Self::Access => before(What::Accesses),
            Self::Barrier => before(What::Barriers),
        }
    }
}

/// The module with calls of these functions of `patch` in all of its kernels. As Sanitizer it does not look at accesses through
/// generic addresses alone: those of shared memory are told too, which Sanitizer tells apart.
///
/// # Errors
/// The module, or the patch, does not begin as a module does.
pub fn called(module: &Module, patch: &Module, spots: &BTreeSet<Spot>) -> Result<String, Refusal> {
    let head = needs::head(module)?;
    let body = &patch.text()[needs::head(patch)?.end..];
    let mut base = "gc_".to_owned();
    while module.text().contains(&base) || body.contains(&base) {
        base.insert(1, 'c');
    }
    let how = How { switch: false, ..How::default() };
    let files = HashMap::new();
    let mut insertions: Vec<Insertion> = Vec::new();
    for spot in spots {
        let fragment = call(&base, *spot);
        let site = Site { base: &base, fragment: &fragment, switch: 0, how: &how };
        for function in module.functions().iter().filter(|function| function.kernel) {
            let (found, _) = points(module, function, &spot.attach(), &files);
            for point in found {
                site.write(&point, 0, &mut insertions);
            }
        }
    }
    let declared = format!("\n\n.visible .const .align 8 .b64 {GIVEN};\n{body}\n");
    insertions.push((head.end, 0, declared));
    insertions.sort_by_key(|&(at, rank, _)| (at, rank));
    Ok(super::inserted(module.text(), &insertions).0)
}

/// A call of a place's function: its parameters from the words of the place's context.
fn call(base: &str, spot: Spot) -> String {
    let word = |n| Site::context(base, n);
    let mut text = String::from("{\n");
    for (n, bits) in spot.parameters().iter().enumerate() {
        text += &format!("\t.param .b{bits} {base}a{n};\n");
    }
    text += &format!(
        "\t.param .b32 {base}r;\n\tld.const.u64 %{base}v, [{GIVEN}];\n\tst.param.b64 [{base}a0], %{base}v;\n\
         \tmov.b64 %{base}v, 0;\n\tst.param.b64 [{base}a1], %{base}v;\n"
    );
    if spot == Spot::Access {
        // The flags: a write's bit is a store's, a read's a load's, and an atomic operation has both.
        text += &format!(
            "\tst.param.b64 [{base}a2], {};\n\tcvt.u32.u64 %{base}w1, {};\n\tst.param.b32 [{base}a3], %{base}w1;\n\
             \tcvt.u32.u64 %{base}w1, {};\n\tand.b32 %{base}w1, %{base}w1, {};\n\
             \tsetp.eq.s32 %{base}p1, %{base}w1, {ATOMIC};\n\tselp.b32 %{base}w1, {}, %{base}w1, %{base}p1;\n\
             \tst.param.b32 [{base}a4], %{base}w1;\n\tst.param.b64 [{base}a5], %{base}v;\n",
            word(1),
            word(2),
            word(3),
            LOAD | STORE | ATOMIC,
            STORE | LOAD
        );
    } else {
        for n in 2..spot.parameters().len() {
            text += &format!("\tmov.b32 %{base}w1, 0;\n\tst.param.b32 [{base}a{n}], %{base}w1;\n");
        }
    }
    let arguments: Vec<String> =
        (0..spot.parameters().len()).map(|n| format!("{base}a{n}")).collect();
    text +=
        &format!("\tcall.uni ({base}r), {}, ({});\n}}\n", spot.function(), arguments.join(", "));
    text
}
