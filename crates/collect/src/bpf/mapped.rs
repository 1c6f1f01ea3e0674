//! Array maps that the recorder maps into its own memory, so that reading them costs no system call.

use std::marker::PhantomData;

use libbpf_rs::{MapCore, MapType};

use super::layout::Plain;
use crate::error::CollectError;
use crate::sys::Mapped;

/// What helps where the C half and the Rust half of a probe do not match.
pub(super) const REBUILD: &str = "rebuild gpuwhy: its BPF objects are of another version";

/// An array map in our own memory.
///
/// The kernel writes while we read; each value is copied out by volatile loads, so a value may be
/// torn between its fields but each aligned field is whole.
#[derive(Debug)]
pub(crate) struct MappedArray<T> {
    memory: Mapped,
    stride: usize,
    len: usize,
    value: PhantomData<T>,
}

impl<T: Plain> MappedArray<T> {
    /// Maps `map`, an array with `BPF_F_MMAPABLE` whose values are `T`.
    ///
    /// # Errors
    /// Values of another size, or no memory.
    pub fn new(name: &'static str, map: &dyn MapCore) -> Result<MappedArray<T>, CollectError> {
        let stride = (map.value_size() as usize).next_multiple_of(8);
        if map.map_type() != MapType::Array || map.value_size() as usize != size_of::<T>() {
            return Err(CollectError::Unsupported {
                missing: format!(
                    "the BPF map `{name}` has values of {} bytes where {} are expected",
                    map.value_size(),
                    size_of::<T>()
                ),
                fix: REBUILD.into(),
            });
        }
        let len = map.max_entries() as usize;
        let bytes = stride * len;
        let memory = Mapped::new(map.as_fd(), bytes).map_err(|source| CollectError::System {
            action: format!("map `{name}` into memory"),
            source,
        })?;
        Ok(MappedArray { memory, stride, len, value: PhantomData })
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// A copy of value `i`; zeros behind the end.
    pub fn read(&self, i: usize) -> T {
        if i >= self.len {
            return T::default();
        }
        // SAFETY: `i * stride + size_of::<T>()` lies within the mapping (`i < len`), which lives
        // until drop; array values are 8-byte aligned and `T`'s fields need no more; the volatile
        // read keeps the compiler from assuming that the value stands still, and any bytes are
        // a valid `T`.
        unsafe { self.memory.start().add(i * self.stride).cast::<Unaligned<T>>().read_volatile().0 }
    }

    /// Copies of all values.
    pub fn iter(&self) -> impl Iterator<Item = T> {
        (0..self.len).map(|i| self.read(i))
    }
}

/// A value at an address that is a multiple of 8, whatever its own type would ask for.
#[derive(Clone, Copy)]
#[repr(C, packed(8))]
struct Unaligned<T>(T);
