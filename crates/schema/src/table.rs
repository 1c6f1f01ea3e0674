//! What a table is, and the macro that declares one.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{DataType, Field, Schema, SchemaRef};

use crate::Ns;

/// The version of all tables together; it stands in the Arrow metadata of every file.
///
/// A column added at the end keeps it; anything else increases it.
pub const VERSION: u32 = 1;

/// Metadata key of the schema version.
pub const VERSION_KEY: &str = "gpuwhy.schema_version";
/// Metadata key of the table's name.
pub const TABLE_KEY: &str = "gpuwhy.table";

/// A batch of rows that is not what its table says.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// Written by another version.
    #[error("table `{table}` has schema version {found}, this program reads version {VERSION}")]
    Version {
        /// The table.
        table: &'static str,
        /// What the metadata says.
        found: String,
    },
    /// Another table's rows.
    #[error("expected table `{table}`, found `{found}`")]
    Table {
        /// The table asked for.
        table: &'static str,
        /// The table found.
        found: String,
    },
    /// A column is not there.
    #[error("table `{table}` has no column `{column}`")]
    Missing {
        /// The table.
        table: &'static str,
        /// The column.
        column: &'static str,
    },
    /// A column has another type.
    #[error("column `{table}.{column}` is {found}, expected {expected}")]
    Type {
        /// The table.
        table: &'static str,
        /// The column.
        column: &'static str,
        /// The type found.
        found: DataType,
        /// The type declared.
        expected: DataType,
    },
    /// A value is not allowed.
    #[error("row {row} of `{table}.{column}` holds {found}")]
    Value {
        /// The table.
        table: &'static str,
        /// The column.
        column: &'static str,
        /// The row, from 0 within its batch.
        row: usize,
        /// The value.
        found: String,
    },
}

/// One column as declared.
#[derive(Debug, Clone)]
pub struct Column {
    /// Its name.
    pub name: &'static str,
    /// Its Arrow type.
    pub data_type: DataType,
    /// Whether a row may go without.
    pub nullable: bool,
    /// What its values identify.
    pub role: crate::cell::Role,
    /// Its meaning.
    pub doc: &'static str,
}

/// A row type that makes a table.
pub trait Table: Sized + Clone + std::fmt::Debug + Send + 'static {
    /// The table's name, and the name of its folder in a trace.
    const NAME: &'static str;
    /// What a row says.
    const DOC: &'static str;
    /// Which group of tables it belongs to, for the docs.
    const GROUP: &'static str;
    /// The column that says when a row begins to hold; `None` for tables without time.
    const START: Option<&'static str>;
    /// The column that says how long it holds; `None` where rows are points.
    const LASTING: Option<&'static str>;

    /// The columns in their order.
    fn columns() -> Vec<Column>;
    /// The rows as a batch with [`schema`].
    fn batch(rows: &[Self]) -> RecordBatch;
    /// The rows of a batch; extra columns are ignored.
    fn rows(batch: &RecordBatch) -> Result<Vec<Self>, SchemaError>;
    /// The row's own identity, and for a detail that of its span or mark; `None` where the
    /// table's rows have none.
    fn id(&self) -> Option<crate::Id>;
    /// When the row begins to hold; `None` for tables without time.
    fn start(&self) -> Option<Ns>;
    /// When the row ceases to hold ([`Ns::MAX`] while it has not); `None` for tables without time.
    fn end(&self) -> Option<Ns>;
}

/// The Arrow schema of a table, with its name and version in the metadata.
pub fn schema<T: Table>() -> SchemaRef {
    let fields: Vec<Field> =
        T::columns().into_iter().map(|c| Field::new(c.name, c.data_type, c.nullable)).collect();
    let metadata = [
        (VERSION_KEY.to_string(), VERSION.to_string()),
        (TABLE_KEY.to_string(), T::NAME.to_string()),
    ];
    Arc::new(Schema::new_with_metadata(fields, metadata.into()))
}

/// Refuses a batch of another table or version.
pub(crate) fn check_metadata<T: Table>(schema: &Schema) -> Result<(), SchemaError> {
    match schema.metadata.get(TABLE_KEY) {
        Some(found) if found != T::NAME => {
            return Err(SchemaError::Table { table: T::NAME, found: found.clone() });
        }
        _ => {}
    }
    match schema.metadata.get(VERSION_KEY) {
        Some(found) if found.parse() != Ok(VERSION) => {
            Err(SchemaError::Version { table: T::NAME, found: found.clone() })
        }
        Some(_) => Ok(()),
        None => Err(SchemaError::Version { table: T::NAME, found: "none".into() }),
    }
}

/// What the docs need of a table.
pub(crate) struct TableDoc {
    pub name: &'static str,
    pub group: &'static str,
    pub doc: &'static str,
    pub columns: Vec<Column>,
    pub time: &'static str,
}

pub(crate) fn read_column<T: Table, C: crate::cell::Cell>(
    batch: &RecordBatch,
    column: &'static str,
) -> Result<Vec<C>, SchemaError> {
    let array =
        batch.column_by_name(column).ok_or(SchemaError::Missing { table: T::NAME, column })?;
    if *array.data_type() != C::TYPE {
        return Err(SchemaError::Type {
            table: T::NAME,
            column,
            found: array.data_type().clone(),
            expected: C::TYPE,
        });
    }
    C::read(array.as_ref()).map_err(|bad| SchemaError::Value {
        table: T::NAME,
        column,
        row: bad.row,
        found: bad.found,
    })
}

/// Declares the tables: row structs, batches, docs, and [`crate::Rows`] that holds one `Vec` of
/// each.
macro_rules! tables {
    ($(
        $(#[doc = $doc:literal])+
        $group:literal $Row:ident / $table:ident : $time:ident $(($($t:ident),+))? {
            $($(#[doc = $cdoc:literal])+ $column:ident : $ty:ty,)+
        }
    )+) => {
        $(
            $(#[doc = $doc])+
            #[derive(Clone, Debug, PartialEq)]
            pub struct $Row { $($(#[doc = $cdoc])+ pub $column: $ty,)+ }

            impl $crate::Table for $Row {
                const NAME: &'static str = stringify!($table);
                const DOC: &'static str = concat!($($doc, "\n"),+);
                const GROUP: &'static str = $group;

                fn columns() -> Vec<$crate::Column> {
                    vec![$($crate::Column {
                        name: stringify!($column),
                        data_type: <$ty as $crate::cell::Cell>::TYPE,
                        nullable: <$ty as $crate::cell::Cell>::NULLABLE,
                        role: <$ty as $crate::cell::Cell>::ROLE,
                        doc: concat!($($cdoc),+).trim_ascii_start(),
                    },)+]
                }

                fn batch(rows: &[Self]) -> arrow_array::RecordBatch {
                    let columns = vec![$(
                        <$ty as $crate::cell::Cell>::column(rows.iter().map(|r| &r.$column)),
                    )+];
                    arrow_array::RecordBatch::try_new($crate::schema::<Self>(), columns)
                        .expect("columns are built by the schema's own cells, one a row")
                }

                fn rows(batch: &arrow_array::RecordBatch) -> Result<Vec<Self>, $crate::SchemaError> {
                    $crate::table::check_metadata::<Self>(&batch.schema())?;
                    $(let mut $column = $crate::table::read_column::<Self, $ty>(
                        batch, stringify!($column),
                    )?.into_iter();)+
                    Ok((0..batch.num_rows())
                        .map_while(|_| Some($Row { $($column: $column.next()?,)+ }))
                        .collect())
                }

                fn id(&self) -> Option<$crate::Id> {
                    let mut id = None;
                    $(if stringify!($column) == "id" {
                        id = $crate::cell::Cell::row_id(&self.$column);
                    })+
                    id
                }

                tables!(@time $time $(($($t),+))?);
            }
        )+

        /// Rows of every table: what a source hands over, what a trace holds.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct Rows { $(#[doc = concat!("Rows of `", stringify!($table), "`.")] pub $table: Vec<$Row>,)+ }

        /// The names of all tables, in the order of their declaration.
        pub const TABLES: &[&str] = &[$(stringify!($table)),+];

        /// Something to be done with every table.
        pub trait EachTable {
            /// What may go wrong.
            type Error;
            /// Does it with the rows of one table.
            fn table<T: $crate::Table>(&mut self, rows: &mut Vec<T>) -> Result<(), Self::Error>;
        }

        /// How a table is made out of the same table's rows in several places.
        pub trait Gather {
            /// Makes one, of rows that stay where they are.
            fn table<'a, T: $crate::Table>(
                &mut self,
                lists: impl Iterator<Item = &'a [T]> + Clone,
            ) -> Vec<T>;
        }

        impl Rows {
            /// Calls `each` with every table, empty ones too, until it fails.
            pub fn each<E: EachTable>(&mut self, each: &mut E) -> Result<(), E::Error> {
                $(each.table(&mut self.$table)?;)+
                Ok(())
            }

            /// How many rows there are in all tables together.
            pub fn len(&self) -> usize {
                0 $(+ self.$table.len())+
            }

            /// Whether there are none.
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// Makes each table out of that table's rows in all of `parts`.
            pub fn gather<'a, G: Gather>(
                parts: impl Iterator<Item = &'a Rows> + Clone,
                gather: &mut G,
            ) -> Rows {
                Rows { $($table: gather.table(parts.clone().map(|rows| &rows.$table[..])),)+ }
            }

            /// Removes all rows, and keeps their memory for others.
            pub fn clear(&mut self) {
                $(self.$table.clear();)+
            }

            /// Makes room for as many rows as `other` has of each table, but for no more than `most`.
            pub fn reserve_like(&mut self, other: &Rows, most: usize) {
                $(self.$table.reserve(other.$table.len().min(most));)+
            }

            /// Moves all rows of `other` to the end of these.
            pub fn append(&mut self, other: &mut Rows) {
                // Nothing is copied where there was nothing.
                $(match self.$table.is_empty() {
                    true => std::mem::swap(&mut self.$table, &mut other.$table),
                    false => self.$table.append(&mut other.$table),
                })+
            }
        }

        pub(crate) fn table_docs() -> Vec<$crate::table::TableDoc> {
            use $crate::Table;
            vec![$($crate::table::TableDoc {
                name: $Row::NAME,
                group: $Row::GROUP,
                doc: $Row::DOC,
                columns: $Row::columns(),
                time: tables!(@when $time $(($($t),+))?),
            }),+]
        }
    };
    (@time none) => {
        const START: Option<&'static str> = None;
        const LASTING: Option<&'static str> = None;
        fn start(&self) -> Option<$crate::Ns> { None }
        fn end(&self) -> Option<$crate::Ns> { None }
    };
    (@time at($ts:ident)) => {
        const START: Option<&'static str> = Some(stringify!($ts));
        const LASTING: Option<&'static str> = None;
        fn start(&self) -> Option<$crate::Ns> { Some(self.$ts) }
        fn end(&self) -> Option<$crate::Ns> { Some(self.$ts) }
    };
    (@time during($ts:ident, $dur:ident)) => {
        const START: Option<&'static str> = Some(stringify!($ts));
        const LASTING: Option<&'static str> = Some(stringify!($dur));
        fn start(&self) -> Option<$crate::Ns> { Some(self.$ts) }
        fn end(&self) -> Option<$crate::Ns> {
            Some(Option::<$crate::Ns>::from(self.$dur)
                .map_or($crate::Ns::MAX, |dur| self.$ts.saturating_add(dur)))
        }
    };
    (@when none) => { "no time" };
    (@when at($ts:ident)) => { concat!("at `", stringify!($ts), "`") };
    (@when during($ts:ident, $dur:ident)) => {
        concat!("from `", stringify!($ts), "` for `", stringify!($dur), "`")
    };
}
pub(crate) use tables;
