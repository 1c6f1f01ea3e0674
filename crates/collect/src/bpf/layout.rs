//! Structs and enums that BPF programs in C and the recorder in Rust share.
//!
//! [`shared_with_c`] declares them for one probe. Each declaration names its C counterpart, and the
//! macro adds a test that compares the two with the compiled object's type information: members,
//! offsets, sizes, and the constants of enums.

/// Declares structs and enums as C declares them in the named objects, and a test that compares
/// them.
///
/// Structs may hold integers, arrays of them, and other such structs, in an order that leaves no
/// padding; the compiler checks both. An enum `Kind = "kind"` has the constants of `enum kind`
/// without its prefix `KIND_`, counted from 0.
macro_rules! shared_with_c {
    (objects [$($object:literal),+]; $($items:tt)*) => {
        $crate::bpf::layout::shared_with_c!(@item [$($object),+] [] $($items)*);
    };
    (@item $objects:tt [$($check:tt)*]
        $(#[$doc:meta])* $vis:vis struct $name:ident = $c:literal {
            $($(#[$fdoc:meta])* $fvis:vis $field:ident: $ty:ty,)*
        }
        $($rest:tt)*
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default)]
        #[repr(C)]
        $vis struct $name { $($(#[$fdoc])* $fvis $field: $ty,)* }

        const _: () = {
            const fn plain<T: $crate::bpf::layout::Plain>() {}
            $(plain::<$ty>();)*
            assert!(size_of::<$name>() == 0 $(+ size_of::<$ty>())*, "no padding");
        };
        // SAFETY: every field is plain and there is no padding, both checked just above.
        unsafe impl $crate::bpf::layout::Plain for $name {}

        $crate::bpf::layout::shared_with_c!(@item $objects [
            $($check)*
            (same_struct $c, size_of::<$name>(),
                &[$((stringify!($field), std::mem::offset_of!($name, $field)),)*])
        ] $($rest)*);
    };
    (@item $objects:tt [$($check:tt)*]
        $(#[$doc:meta])* $vis:vis enum $name:ident = $c:literal {
            $($(#[$vdoc:meta])* $variant:ident,)*
        }
        $($rest:tt)*
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        $vis enum $name { $($(#[$vdoc])* $variant,)* }

        #[allow(dead_code)] // not every enum needs both
        impl $name {
            /// All constants, in their order.
            $vis const ALL: [$name; [$($name::$variant),*].len()] = [$($name::$variant),*];

            /// The constant with this number.
            $vis fn from_code(code: u8) -> Option<$name> {
                $name::ALL.get(usize::from(code)).copied()
            }
        }

        $crate::bpf::layout::shared_with_c!(@item $objects [
            $($check)*
            (same_enum $c, &[$(stringify!($variant)),*])
        ] $($rest)*);
    };
    (@item [$($object:literal),+] [$(($check:ident $($argument:tt)*))*]) => {
        #[cfg(test)]
        mod shared_with_c {
            #[allow(unused_imports)] // an enum's names need nothing of the file
            use super::*;

            #[test]
            fn the_declarations_in_rust_and_c_agree() {
                for object in [$($object),+] {
                    $($crate::bpf::layout::tests::$check(object, $($argument)*);)*
                }
            }
        }
    };
}
pub(crate) use shared_with_c;

/// Types of which any bytes are a valid value.
///
/// # Safety
/// No padding, no references, no enums: every bit pattern must be a value.
pub(crate) unsafe trait Plain: Copy + Default + 'static {}

macro_rules! plain_integers {
    ($($ty:ty)*) => { $(
        // SAFETY: any bytes are an integer.
        unsafe impl Plain for $ty {}
    )* };
}
plain_integers!(u8 u16 u32 u64 i32 i64);

// SAFETY: an array has no padding of its own.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] where [T; N]: Default {}

/// The first `size_of::<T>()` bytes of `bytes` as a `T`; `None` if there are fewer.
pub(crate) fn from_bytes<T: Plain>(bytes: &[u8]) -> Option<T> {
    if bytes.len() < size_of::<T>() {
        return None;
    }
    // SAFETY: long enough (checked above), any bytes are a valid `T` (`Plain`), and
    // `read_unaligned` asks nothing of the address.
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// The bytes of a plain value, for map keys and values.
pub(crate) fn bytes_of<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: the value lives as long as the borrow, is `size_of::<T>()` bytes long, and
    // `Plain` types have no uninitialised padding.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// The text before the first NUL, as C writes names into arrays.
pub(crate) fn text_of(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
pub(crate) mod tests {
    use libbpf_rs::btf::types::{Enum, MemberAttr, Struct};
    use libbpf_rs::btf::{Btf, HasSize};

    fn types(object: &str) -> Btf<'static> {
        Btf::from_path(format!("{}/{object}.bpf.o", env!("OUT_DIR"))).unwrap()
    }

    /// Fails unless `struct name` of the compiled object has this size and these fields, each with its
    /// offset.
    pub(crate) fn same_struct(object: &str, name: &str, size: usize, fields: &[(&str, usize)]) {
        let btf = types(object);
        let found = btf
            .type_by_name::<Struct<'_>>(name)
            .unwrap_or_else(|| panic!("no `struct {name}` in `{object}`"));
        let theirs: Vec<(String, usize)> = found
            .iter()
            .map(|member| {
                let MemberAttr::Normal { offset } = member.attr else { panic!("a bit field") };
                (member.name.unwrap().to_string_lossy().into_owned(), offset as usize / 8)
            })
            .collect();
        let ours: Vec<(String, usize)> =
            fields.iter().map(|&(name, offset)| (name.to_owned(), offset)).collect();
        assert_eq!(theirs, ours, "`struct {name}` of `{object}`");
        assert_eq!(found.size(), size, "`struct {name}` of `{object}`");
    }

    /// Fails unless `enum name` of the compiled object has these constants, counted from 0. `OffCpu` is
    /// `OFF_CPU` in C, and a constant begins with the name of its enum.
    pub(crate) fn same_enum(object: &str, name: &str, constants: &[&str]) {
        let btf = types(object);
        let found = btf
            .type_by_name::<Enum<'_>>(name)
            .unwrap_or_else(|| panic!("no `enum {name}` in `{object}`"));
        let theirs: Vec<(String, i64)> = found
            .iter()
            .map(|member| (member.name.unwrap().to_string_lossy().into_owned(), member.value))
            .collect();
        let prefix = name.to_ascii_uppercase();
        let ours: Vec<(String, i64)> = constants
            .iter()
            .map(|constant| format!("{prefix}_{}", upper_snake(constant)))
            .zip(0..)
            .collect();
        assert_eq!(theirs, ours, "`enum {name}` of `{object}`");
    }

    fn upper_snake(name: &str) -> String {
        let mut text = String::new();
        for (i, c) in name.chars().enumerate() {
            if i > 0 && c.is_ascii_uppercase() {
                text.push('_');
            }
            text.push(c.to_ascii_uppercase());
        }
        text
    }

    #[test]
    fn names_end_at_their_nul() {
        assert_eq!(super::text_of(b"eth0\0\0rest"), "eth0");
        assert_eq!(super::text_of(b"sixteen bytes aa"), "sixteen bytes aa");
    }
}
