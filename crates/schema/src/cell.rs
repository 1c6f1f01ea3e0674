//! How one column's values pass between Rust and Arrow.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type, UInt32Type, UInt64Type};
use arrow_array::{Array, ArrayRef, BooleanArray, Float64Array, Int64Array, StringArray};
use arrow_array::{UInt32Array, UInt64Array};
use arrow_schema::DataType;

use crate::{EntityId, Id, Ns, SourceId, TrackId};

/// A name, shared by the many rows that bear it.
pub type Name = Arc<str>;

/// What a column's values identify, so that references can be checked and renumbered by program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Nothing: they are values.
    Value,
    /// A span, a mark or a finding.
    Row,
    /// An entity.
    Entity,
    /// A track.
    Track,
    /// A source.
    Source,
}

/// A value that can stand in a column.
pub trait Cell: Sized {
    /// What it identifies.
    const ROLE: Role = Role::Value;
    /// The span, mark or finding that it identifies, if that is what it does.
    fn row_id(&self) -> Option<Id> {
        None
    }
    /// The Arrow type of the column.
    const TYPE: DataType;
    /// Whether a row may go without.
    const NULLABLE: bool;
    /// The column of these values.
    fn column<'a>(cells: impl Iterator<Item = &'a Self>) -> ArrayRef
    where
        Self: 'a;
    /// All values of a column whose type is [`Cell::TYPE`], or the row and the text that is
    /// not one of the choices.
    fn read(column: &dyn Array) -> Result<Vec<Self>, BadCell>;
}

/// A value that its column does not allow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadCell {
    /// The row, counted from 0 within the batch.
    pub row: usize,
    /// What stands there.
    pub found: String,
}

/// A word that its column does not know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{word}` is none of {}", choices.join(", "))]
pub struct UnknownWord {
    /// What stood there.
    pub word: String,
    /// What may stand there.
    pub choices: &'static [&'static str],
}

fn no_null(column: &dyn Array) -> Result<(), BadCell> {
    if column.null_count() == 0 {
        return Ok(());
    }
    let row = (0..column.len()).find(|&row| column.is_null(row)).unwrap_or(0);
    Err(BadCell { row, found: "null".into() })
}

/// The function as it is, of a known type; a pointer to it would be called for each value of a column.
fn of_ref<A, B>(function: impl Fn(&A) -> B) -> impl Fn(&A) -> B {
    function
}

/// The same for values.
fn of_value<A, B>(function: impl Fn(A) -> B) -> impl Fn(A) -> B {
    function
}

macro_rules! number_cell {
    ($ty:ty, $data:ident, $array:ident, $arrow:ident, $native:ty, $from:expr, $to:expr $(, $role:ident)?) => {
        impl Cell for $ty {
            $(const ROLE: Role = Role::$role;)?
            const TYPE: DataType = DataType::$data;
            const NULLABLE: bool = false;
            fn column<'a>(cells: impl Iterator<Item = &'a Self>) -> ArrayRef {
                let from = of_ref::<$ty, $native>($from);
                Arc::new($array::from_iter_values(cells.map(from)))
            }
            fn read(column: &dyn Array) -> Result<Vec<Self>, BadCell> {
                no_null(column)?;
                let to = of_value::<$native, $ty>($to);
                Ok(column.as_primitive::<$arrow>().values().iter().map(|&v| to(v)).collect())
            }
            $(number_cell!(@row_id $role);)?
        }
        impl Cell for Option<$ty> {
            $(const ROLE: Role = Role::$role;)?
            const TYPE: DataType = DataType::$data;
            const NULLABLE: bool = true;
            fn column<'a>(cells: impl Iterator<Item = &'a Self>) -> ArrayRef {
                let from = of_ref::<$ty, $native>($from);
                Arc::new(cells.map(|cell| cell.as_ref().map(&from)).collect::<$array>())
            }
            fn read(column: &dyn Array) -> Result<Vec<Self>, BadCell> {
                let to = of_value::<$native, $ty>($to);
                Ok(column.as_primitive::<$arrow>().iter().map(|v| v.map(&to)).collect())
            }
        }
    };
    (@row_id Row) => {
        fn row_id(&self) -> Option<Id> {
            Some(*self)
        }
    };
    (@row_id $role:ident) => {};
}

number_cell!(i64, Int64, Int64Array, Int64Type, i64, |v| *v, |v| v);
number_cell!(u64, UInt64, UInt64Array, UInt64Type, u64, |v| *v, |v| v);
number_cell!(u32, UInt32, UInt32Array, UInt32Type, u32, |v| *v, |v| v);
number_cell!(f64, Float64, Float64Array, Float64Type, f64, |v| *v, |v| v);
number_cell!(Ns, Int64, Int64Array, Int64Type, i64, |v| v.0, Ns);
number_cell!(Id, UInt64, UInt64Array, UInt64Type, u64, |v| v.0, Id, Row);
number_cell!(EntityId, UInt32, UInt32Array, UInt32Type, u32, |v| v.0, EntityId, Entity);
number_cell!(TrackId, UInt32, UInt32Array, UInt32Type, u32, |v| v.0, TrackId, Track);
number_cell!(SourceId, UInt32, UInt32Array, UInt32Type, u32, |v| v.0, SourceId, Source);

impl Cell for bool {
    const TYPE: DataType = DataType::Boolean;
    const NULLABLE: bool = false;
    fn column<'a>(cells: impl Iterator<Item = &'a Self>) -> ArrayRef {
        Arc::new(cells.map(|&v| Some(v)).collect::<BooleanArray>())
    }
    fn read(column: &dyn Array) -> Result<Vec<Self>, BadCell> {
        no_null(column)?;
        Ok(column.as_boolean().values().iter().collect())
    }
}

impl Cell for Name {
    const TYPE: DataType = DataType::Utf8;
    const NULLABLE: bool = false;
    fn column<'a>(cells: impl Iterator<Item = &'a Self>) -> ArrayRef {
        Arc::new(StringArray::from_iter_values(cells))
    }
    fn read(column: &dyn Array) -> Result<Vec<Self>, BadCell> {
        no_null(column)?;
        let mut names = Names::default();
        Ok(column.as_string::<i32>().iter().flatten().map(|s| names.name(s)).collect())
    }
}

impl Cell for Option<Name> {
    const TYPE: DataType = DataType::Utf8;
    const NULLABLE: bool = true;
    fn column<'a>(cells: impl Iterator<Item = &'a Self>) -> ArrayRef {
        Arc::new(cells.map(|cell| cell.as_deref()).collect::<StringArray>())
    }
    fn read(column: &dyn Array) -> Result<Vec<Self>, BadCell> {
        let mut names = Names::default();
        Ok(column.as_string::<i32>().iter().map(|s| s.map(|s| names.name(s))).collect())
    }
}

/// Names seen before, so that equal names share one allocation.
#[derive(Debug, Default)]
pub struct Names {
    known: std::collections::HashSet<Name>,
    last: Option<Name>,
}

impl Names {
    /// The one copy of `text`.
    pub fn name(&mut self, text: &str) -> Name {
        if let Some(last) = &self.last
            && &**last == text
        {
            return last.clone();
        }
        let name = match self.known.get(text) {
            Some(name) => name.clone(),
            None => {
                let name: Name = text.into();
                self.known.insert(name.clone());
                name
            }
        };
        self.last = Some(name.clone());
        name
    }
}

/// Declares a column of a few known words: the enum, its words, their meaning, and its cell.
macro_rules! choice {
    ($(#[doc = $doc:literal])+ $name:ident { $($(#[doc = $vdoc:literal])+ $variant:ident = $word:literal,)+ }) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[doc = $vdoc])+ $variant,)+ }

        impl $name {
            /// Every choice, in the order of its declaration.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// The word that stands in the column.
            pub const fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word),+ }
            }

            /// What it means, as documented.
            pub const fn doc(self) -> &'static str {
                match self { $($name::$variant => concat!($($vdoc),+).trim_ascii_start()),+ }
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::UnknownWord;
            fn from_str(word: &str) -> Result<$name, $crate::UnknownWord> {
                match word {
                    $($word => Ok($name::$variant),)+
                    _ => Err($crate::UnknownWord { word: word.into(), choices: &[$($word),+] }),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl $crate::cell::Cell for $name {
            const TYPE: arrow_schema::DataType = arrow_schema::DataType::Utf8;
            const NULLABLE: bool = false;
            fn column<'a>(cells: impl Iterator<Item = &'a Self>) -> arrow_array::ArrayRef {
                std::sync::Arc::new(arrow_array::StringArray::from_iter_values(
                    cells.map(|c| c.as_str()),
                ))
            }
            fn read(column: &dyn arrow_array::Array) -> Result<Vec<Self>, $crate::cell::BadCell> {
                let cells = <Option<$name> as $crate::cell::Cell>::read(column)?;
                let missing = cells.iter().position(Option::is_none);
                if let Some(row) = missing {
                    return Err($crate::cell::BadCell { row, found: "null".into() });
                }
                Ok(cells.into_iter().flatten().collect())
            }
        }

        impl $crate::cell::Cell for Option<$name> {
            const TYPE: arrow_schema::DataType = arrow_schema::DataType::Utf8;
            const NULLABLE: bool = true;
            fn column<'a>(cells: impl Iterator<Item = &'a Self>) -> arrow_array::ArrayRef {
                std::sync::Arc::new(
                    cells.map(|c| c.map(|c| c.as_str())).collect::<arrow_array::StringArray>(),
                )
            }
            fn read(column: &dyn arrow_array::Array) -> Result<Vec<Self>, $crate::cell::BadCell> {
                use arrow_array::cast::AsArray;
                column
                    .as_string::<i32>()
                    .iter()
                    .enumerate()
                    .map(|(row, word)| match word {
                        None => Ok(None),
                        Some(word) => word.parse().map(Some).map_err(|_| {
                            $crate::cell::BadCell { row, found: format!("{word:?}") }
                        }),
                    })
                    .collect()
            }
        }
    };
}
pub(crate) use choice;
