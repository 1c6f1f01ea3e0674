//! The parts of a trace: its files by table, and its entities, tracks and sources in memory.
//!
//! A trace on this machine is opened by `store`, which seals the journal of a recorder that died. A trace
//! in an object store is read as it is: its manifest, and the few files of entities, tracks and sources.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray, UInt32Array};
use datafusion::arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use gpuwhy_derive::devices::{Above, Devices};
use gpuwhy_schema::{EachTable, Entity, EntityId, EntityKind, Name, Rows, Source, Table, Track};
use gpuwhy_store::{LaneRow, MANIFEST, Manifest};
use object_store::ObjectStoreExt as _;
use object_store::path::Path as StorePath;
use url::Url;

use crate::stores::Location;

/// The longest manifest that is read from an object store, as in `store`.
const MAX_MANIFEST: u64 = 64 << 20;
/// The most bytes of entities, tracks and sources together that are read from an object store.
const MAX_LANES: u64 = 1 << 30;

/// An open trace.
#[derive(Debug)]
pub struct Opened {
    /// Where it lies.
    pub location: Location,
    /// The list of its files.
    pub manifest: Manifest,
    /// Its entities, tracks and sources, the last row of each.
    pub lanes: Rows,
    /// Its devices.
    pub devices: Devices,
    /// Notes for the user: that it is still being written, or was recovered.
    pub notes: Vec<String>,
}

impl Opened {
    /// The URLs of a table's files, in the order in which they were written.
    pub fn files(&self, table: &str) -> Result<Vec<Url>> {
        self.manifest.files_of(table).map(|f| self.location.file(&f.path)).collect()
    }

    /// Whether rows of a table may have been written twice, open and then ended.
    pub fn has_open_rows(&self, table: &str) -> bool {
        self.manifest.files_of(table).any(|f| f.open > 0)
    }

    /// When the first kernel or copy began, in ns; the beginning of the trace if it has none.
    pub fn origin(&self) -> i64 {
        self.manifest.first_start(&["kernel", "copy"]).or(self.manifest.start).unwrap_or(0)
    }
}

/// Opens a trace.
///
/// # Errors
/// There is none, or it cannot be read; the message names the file.
pub async fn open(location: Location, runtime: &RuntimeEnv) -> Result<Opened> {
    let mut notes = Vec::new();
    let (manifest, lanes) = match location.path() {
        Some(path) => {
            let trace = gpuwhy_store::Trace::open(&path)?;
            let unsealed: u64 = trace.summary().tables.iter().map(|t| t.journal_rows).sum();
            if trace.is_live() {
                notes.push(format!(
                    "`{}` is being written: {unsealed} rows of its journal cannot be queried yet",
                    location.named
                ));
            } else if unsealed > 0 {
                notes.push(format!(
                    "`{}` has {unsealed} rows in a journal that cannot be sealed here; they cannot be queried",
                    location.named
                ));
            }
            let lanes = Rows {
                entity: trace.entities()?,
                track: trace.tracks()?,
                source: trace.sources()?,
                ..Rows::default()
            };
            // Read again: opening may have sealed the journal of a recorder that died.
            (Manifest::read(&path)?, lanes)
        }
        None => {
            let manifest = read_manifest(&location, runtime).await?;
            if !manifest.complete {
                notes.push(format!(
                    "`{}` is incomplete: its recorder is still running or was killed",
                    location.named
                ));
            }
            let lanes = ["entity", "track", "source"];
            let bytes: u64 =
                lanes.iter().flat_map(|of| manifest.files_of(of)).map(|f| f.bytes).sum();
            if bytes > MAX_LANES {
                bail!(
                    "the entities, tracks and sources of `{}` take {bytes} bytes, more than {MAX_LANES}: copy the \
                     trace to a disk and query it there",
                    location.named
                );
            }
            let lanes = Rows {
                entity: last_rows::<Entity>(&location, &manifest, runtime).await?,
                track: last_rows::<Track>(&location, &manifest, runtime).await?,
                source: last_rows::<Source>(&location, &manifest, runtime).await?,
                ..Rows::default()
            };
            (manifest, lanes)
        }
    };
    let devices = Devices::of(&lanes.entity, &lanes.track);
    Ok(Opened { location, manifest, lanes, devices, notes })
}

async fn read_manifest(location: &Location, runtime: &RuntimeEnv) -> Result<Manifest> {
    let url = location.file(MANIFEST)?;
    let store = runtime.object_store_registry.get_store(&location.url)?;
    let path = StorePath::from_url_path(url.path())?;
    let cannot = || format!("cannot read `{url}`");
    let meta = store.head(&path).await.with_context(cannot)?;
    if meta.size > MAX_MANIFEST {
        bail!("cannot read `{url}`: a manifest of {} bytes is damaged", meta.size);
    }
    let bytes = store.get(&path).await.with_context(cannot)?.bytes().await.with_context(cannot)?;
    let text = std::str::from_utf8(&bytes)
        .with_context(|| format!("`{url}`: byte {} is not UTF-8", bytes.len()))?;
    Ok(Manifest::parse(text, std::path::Path::new(url.as_str()))?)
}

/// The last row of each id of the table of entities, tracks or sources.
async fn last_rows<T: LaneRow>(
    location: &Location,
    manifest: &Manifest,
    runtime: &RuntimeEnv,
) -> Result<Vec<T>> {
    let store = runtime.object_store_registry.get_store(&location.url)?;
    let mut latest: BTreeMap<u32, T> = BTreeMap::new();
    for file in manifest.files_of(T::NAME) {
        let url = location.file(&file.path)?;
        let cannot = || format!("cannot read `{url}`");
        let path = StorePath::from_url_path(url.path())?;
        let got = store.get(&path).await.with_context(cannot)?;
        if got.meta.size > file.bytes {
            bail!("`{url}` has {} bytes, and {} in the manifest", got.meta.size, file.bytes);
        }
        let bytes = got.bytes().await.with_context(cannot)?;
        let reader = ParquetRecordBatchReaderBuilder::try_new(bytes).with_context(cannot)?;
        for batch in reader.build().with_context(cannot)? {
            for row in
                T::rows(&as_table::<T>(&batch.with_context(cannot)?)?).with_context(cannot)?
            {
                latest.insert(row.lane_id(), row);
            }
        }
    }
    Ok(latest.into_values().collect())
}

/// A batch with the schema of a table, whose version was checked in the manifest.
fn as_table<T: Table>(batch: &RecordBatch) -> Result<RecordBatch> {
    let schema = gpuwhy_schema::schema::<T>();
    let columns = schema.fields().iter().map(|field| {
        let column = batch.column_by_name(field.name());
        column.cloned().with_context(|| format!("table `{}` has no `{}`", T::NAME, field.name()))
    });
    let columns = columns.collect::<Result<Vec<_>>>()?;
    Ok(RecordBatch::try_new(schema, columns)?)
}

/// The schema of each table, by name, without its metadata, in which tables of a join may not differ.
pub fn schemas() -> Vec<(&'static str, SchemaRef)> {
    struct Gather(Vec<(&'static str, SchemaRef)>);
    impl EachTable for Gather {
        type Error = std::convert::Infallible;
        fn table<T: Table>(&mut self, _: &mut Vec<T>) -> Result<(), Self::Error> {
            let fields = gpuwhy_schema::schema::<T>().fields().clone();
            self.0.push((T::NAME, Arc::new(Schema::new(fields))));
            Ok(())
        }
    }
    let mut gather = Gather(Vec::new());
    let Ok(()) = Rows::default().each(&mut gather);
    gather.0
}

/// The columns of the table `lanes`.
pub const LANES: &[(&str, &str)] = &[
    ("track", "Id of the track, as in other tables."),
    ("lane", "Name of the track: `stream`, `cuda_calls`, `thread_state` …"),
    ("shape", "Shape of its rows."),
    ("unit", "Unit of a counter."),
    ("entity", "The entity that the track belongs to."),
    ("entity_kind", "Kind of the entity."),
    ("entity_name", "Name of the entity."),
    ("thread", "Name of its thread, if it belongs to one."),
    ("tid", "tid of that thread."),
    ("process", "Name of its process."),
    ("pid", "pid of that process."),
    ("gpu", "Name of its GPU."),
    ("device", "Number of that GPU among the devices of this trace, from 0, by rank."),
    ("rank", "Its rank; for a stream, the rank that used its GPU."),
    ("host", "Name of its host."),
];

/// The rows of the table `lanes`.
pub fn lanes(opened: &Opened) -> Result<RecordBatch> {
    let above = Above::new(&opened.lanes.entity);
    let tracks = &opened.lanes.track;
    let name = |id: EntityId, kind| above.find(id, kind).map(|e: &Entity| e.name.clone());
    let number = |id: EntityId, kind| above.find(id, kind).and_then(|e: &Entity| e.number);
    let text = |of: &dyn Fn(&Track) -> Option<Name>| -> ArrayRef {
        Arc::new(tracks.iter().map(of).collect::<StringArray>())
    };
    let whole = |of: &dyn Fn(&Track) -> Option<i64>| -> ArrayRef {
        Arc::new(tracks.iter().map(of).collect::<Int64Array>())
    };
    let small = |of: &dyn Fn(&Track) -> Option<u32>| -> ArrayRef {
        Arc::new(tracks.iter().map(of).collect::<UInt32Array>())
    };
    let device = |t: &Track| opened.devices.streams.get(&t.id).copied();
    let columns = vec![
        small(&|t| Some(t.id.0)),
        text(&|t| Some(t.name.clone())),
        text(&|t| Some(t.shape.as_str().into())),
        text(&|t| t.unit.clone()),
        small(&|t| Some(t.entity.0)),
        text(&|t| above.get(t.entity).map(|e| e.kind.as_str().into())),
        text(&|t| above.get(t.entity).map(|e| e.name.clone())),
        text(&|t| name(t.entity, EntityKind::Thread)),
        whole(&|t| number(t.entity, EntityKind::Thread)),
        text(&|t| name(t.entity, EntityKind::Process)),
        whole(&|t| number(t.entity, EntityKind::Process)),
        text(&|t| name(t.entity, EntityKind::Gpu)),
        small(&device),
        whole(&|t| match device(t) {
            Some(device) => opened.devices.devices[device as usize].rank,
            None => number(t.entity, EntityKind::Rank),
        }),
        text(&|t| name(t.entity, EntityKind::Host)),
    ];
    let fields: Vec<Field> = LANES
        .iter()
        .zip(&columns)
        .map(|((name, _), column)| Field::new(*name, column.data_type().clone(), true))
        .collect();
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
}

/// The tables that are held in memory, with the last row of each id: name and batch.
pub fn held(opened: &Opened) -> Result<HashMap<&'static str, RecordBatch>> {
    let bare = |batch: RecordBatch| -> Result<RecordBatch> {
        let schema = Schema::new(batch.schema().fields().clone());
        Ok(RecordBatch::try_new(Arc::new(schema), batch.columns().to_vec())?)
    };
    Ok(HashMap::from([
        ("entity", bare(Entity::batch(&opened.lanes.entity))?),
        ("track", bare(Track::batch(&opened.lanes.track))?),
        ("source", bare(Source::batch(&opened.lanes.source))?),
        ("lanes", lanes(opened)?),
    ]))
}
