//! An engine with the tables, views and functions of a trace.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use ballista::prelude::{SessionConfigExt as _, SessionContextExt as _};
use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::TableProvider;
use datafusion::common::{DataFusionError, ScalarValue};
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{
    ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl,
};
use datafusion::datasource::{MemTable, ViewTable};
use datafusion::execution::{SendableRecordBatchStream, SessionStateBuilder};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, ident, lit};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::prelude::{SQLOptions, SessionConfig, SessionContext};
use futures::TryStreamExt as _;
use gpuwhy_derive::sweep::Cut;
use gpuwhy_store::MANIFEST;

use crate::stores::{self, Location};
use crate::trace::{self, Opened};
use crate::views::VIEWS;

/// The most rows of a table in memory that a plan can carry to a cluster.
const CARRIED: usize = 20_000;

/// Tables whose rows may be written twice, open and then ended, with the column that both rows share
/// besides their start.
const TWINS: &[(&str, &str)] = &[("span", "id"), ("state", "track")];

/// The name of the table with both rows, beneath the view without the duplicates.
fn rows_of(table: &str) -> String {
    format!("{table}_rows")
}

/// How to run queries.
#[derive(Clone, Debug)]
pub struct Options {
    /// Threads of this process, or partitions of the work on a cluster.
    pub partitions: usize,
    /// Memory that operators share before they spill, bytes.
    pub memory: usize,
    /// The URL of a cluster's scheduler, `df://host:port`; `None` to run in this process.
    pub cluster: Option<String>,
    /// Length of the intervals of `stalls`, ns; `None` for one that suits the work of devices.
    pub interval: Option<i64>,
    /// The most intervals of a length that is chosen.
    pub most: usize,
}

/// A trace that is open for queries.
pub struct Session {
    context: SessionContext,
    cluster: Option<String>,
    /// The trace.
    pub opened: Opened,
    /// Length of the intervals of `stalls`, ns.
    pub interval: i64,
    /// Whether that was chosen to suit the work of devices.
    pub interval_chosen: bool,
}

impl Session {
    /// Opens the trace at a path or an `s3://` URL.
    ///
    /// # Errors
    /// There is none, it cannot be read, or the scheduler cannot be reached.
    pub async fn open(named: &str, options: &Options) -> Result<Session> {
        let runtime = stores::runtime(Arc::new(stores::Stores::default()), Some(options.memory))?;
        let opened = trace::open(Location::of(named)?, &runtime).await?;
        let config = config(options.cluster.is_some()).with_target_partitions(options.partitions);
        let state = SessionStateBuilder::new()
            .with_default_features()
            .with_config(config)
            .with_runtime_env(runtime)
            .build();
        let mut context = match &options.cluster {
            None => SessionContext::new_with_state(state),
            Some(url) => SessionContext::remote_with_state(url, state)
                .await
                .with_context(|| format!("cannot connect to a scheduler at `{url}`"))?,
        };
        // Registered last: a remote context does not keep the functions of the state it is made from.
        crate::functions::register(&mut context)?;
        let interval = options.interval.unwrap_or_else(|| {
            let last = opened.manifest.last_end(&["kernel", "copy"]).unwrap_or(opened.origin());
            Cut::usual_width(last.saturating_sub(opened.origin()), options.most)
        });
        let (cluster, interval_chosen) = (options.cluster.clone(), options.interval.is_none());
        let session = Session { context, cluster, opened, interval, interval_chosen };
        session.tables()?;
        session.views(interval).await?;
        Ok(session)
    }

    fn tables(&self) -> Result<()> {
        let held = trace::held(&self.opened)?;
        for (name, schema) in trace::schemas() {
            if held.contains_key(name) {
                continue;
            }
            let files = self.opened.files(name)?;
            let table: Arc<dyn TableProvider> = match files.is_empty() {
                true => Arc::new(ViewTable::new(nothing(&schema)?, None)),
                false => Arc::new(listing(files, schema)?),
            };
            let registered = if self.has_twins(name) { rows_of(name) } else { name.to_owned() };
            self.context.register_table(registered, table)?;
        }
        for (name, batch) in held {
            let table: Arc<dyn TableProvider> = match batch.num_rows() {
                0 => Arc::new(ViewTable::new(nothing(&batch.schema())?, None)),
                _ if self.cluster.is_none() => {
                    Arc::new(MemTable::try_new(batch.schema(), vec![vec![batch]])?)
                }
                rows if rows > CARRIED => bail!(
                    "`{}` has {rows} rows of `{name}`; a cluster can be sent at most {CARRIED}: query without --cluster",
                    self.opened.location.named
                ),
                _ => Arc::new(ViewTable::new(values(&batch)?, None)),
            };
            self.context.register_table(name, table)?;
        }
        Ok(())
    }

    /// Whether rows of a table that were written open may have been written again when they ended.
    fn has_twins(&self, table: &str) -> bool {
        TWINS.iter().any(|(name, _)| *name == table) && self.opened.has_open_rows(table)
    }

    async fn views(&self, interval: i64) -> Result<()> {
        for &(name, key) in TWINS.iter().filter(|(name, _)| self.has_twins(name)) {
            let rows = rows_of(name);
            let sql = format!(
                "select * from {rows} where dur is not null union all \
                 select distinct o.* from {rows} o where o.dur is null and not exists ( \
                 select 1 from {rows} e \
                 where e.{key} = o.{key} and e.ts = o.ts and e.dur is not null)"
            );
            self.view(name, &sql).await?;
        }
        let origin = self.opened.origin();
        for view in VIEWS {
            self.view(view.name, &view.sql(origin, interval)).await?;
        }
        Ok(())
    }

    async fn view(&self, name: &str, sql: &str) -> Result<()> {
        let plan = self.context.state().create_logical_plan(sql).await;
        let plan = plan.with_context(|| format!("cannot plan view `{name}`"))?;
        let view = ViewTable::new(plan, Some(sql.into()));
        self.context.register_table(name, Arc::new(view))?;
        Ok(())
    }

    /// Runs a query; rows are streamed as the engine finds them.
    ///
    /// # Errors
    /// The text is not a query over these tables, the engine fails, or the statement would change
    /// something.
    pub async fn query(&self, sql: &str) -> Result<(SchemaRef, SendableRecordBatchStream)> {
        let options = SQLOptions::new()
            .with_allow_ddl(false)
            .with_allow_dml(false)
            .with_allow_statements(false);
        let frame = self.context.sql_with_options(sql, options).await?;
        let schema = Arc::new(frame.schema().as_arrow().clone());
        let suspects = self.suspects();
        let stream = frame.execute_stream().await.map_err(|error| suspects.explain(error))?;
        let rows = stream.map_err(move |error| suspects.explain(error));
        let rows = RecordBatchStreamAdapter::new(Arc::clone(&schema), rows);
        Ok((schema, Box::pin(rows)))
    }

    fn suspects(&self) -> Suspects {
        let files = self.opened.manifest.file.iter().filter(|f| !f.is_head());
        let path =
            |f: &gpuwhy_store::File| self.opened.location.file(&f.path).ok()?.to_file_path().ok();
        let files = files.filter_map(|f| Some((path(f)?, f.bytes))).collect();
        Suspects { files, cluster: self.cluster.clone() }
    }

    /// Runs a query and collects its rows, which must fit into memory.
    ///
    /// # Errors
    /// As [`Session::query`].
    pub async fn all(&self, sql: &str) -> Result<Vec<RecordBatch>> {
        let (_, stream) = self.query(sql).await?;
        Ok(stream.try_collect().await?)
    }

    /// All views, and the tables that have rows: name, columns, and the number of a table's rows.
    ///
    /// # Errors
    /// The engine fails.
    pub async fn contents(&self) -> Result<Vec<(String, Vec<String>, Option<u64>)>> {
        let mut contents = Vec::new();
        let names = VIEWS.iter().map(|v| v.name).chain(["lanes"]);
        for name in names.chain(gpuwhy_schema::TABLES.iter().copied()) {
            let table = self.context.table_provider(name).await?;
            let columns = table.schema().fields().iter().map(|f| f.name().clone()).collect();
            let rows = self.opened.manifest.files_of(name).map(|f| f.rows).sum();
            let is_table = gpuwhy_schema::TABLES.contains(&name);
            if rows > 0 || !is_table {
                contents.push((name.to_owned(), columns, is_table.then_some(rows)));
            }
        }
        Ok(contents)
    }
}

/// What an error of the engine may be caused by that it does not name.
struct Suspects {
    /// The files of a trace on this machine, with the lengths in its manifest.
    files: Vec<(PathBuf, u64)>,
    cluster: Option<String>,
}

impl Suspects {
    /// Adds the damaged file or the cluster to an error.
    fn explain(&self, error: DataFusionError) -> DataFusionError {
        let text = error.to_string();
        let of_files = ["Parquet", "Object at location", "Object Store"];
        let wrong = self.files.iter().find_map(|(path, bytes)| {
            let found = std::fs::metadata(path).map(|m| m.len());
            let damage = match found {
                Ok(found) if found == *bytes => return None,
                Ok(found) => format!("has {found} bytes, and {bytes} in {MANIFEST}"),
                Err(e) => format!("cannot be read: {e}"),
            };
            Some(format!("`{}` {damage}", path.display()))
        });
        match (wrong, &self.cluster) {
            (Some(wrong), _) if of_files.iter().any(|word| text.contains(word)) => {
                error.context(wrong)
            }
            (_, Some(url)) => error.context(format!("the cluster at `{url}`")),
            _ => error,
        }
    }
}

/// The longest message between client, scheduler and executors, bytes: plans carry the tracks of a trace.
pub const MESSAGE: u32 = 64 << 20;

/// The engine's settings, which must be the same in all processes that plan or execute.
pub fn config(cluster: bool) -> SessionConfig {
    let config = match cluster {
        false => SessionConfig::new(),
        // Ballista 55's adaptive planner does not recover from the loss of an executor in all stages.
        true => SessionConfig::new_with_ballista()
            .with_ballista_adaptive_query_planner(false)
            .with_ballista_grpc_client_max_message_size(MESSAGE as usize),
    };
    // Strings keep their plain type: string views and dictionaries do not survive a shuffle.
    config
        .set_bool("datafusion.execution.parquet.schema_force_view_types", false)
        .set_bool("datafusion.sql_parser.map_string_types_to_utf8view", false)
}

/// A table over Parquet files.
fn listing(files: Vec<url::Url>, schema: SchemaRef) -> Result<ListingTable> {
    let urls = files
        .into_iter()
        .map(|url| ListingTableUrl::try_new(url, None))
        .collect::<Result<Vec<_>, _>>()?;
    let options =
        ListingOptions::new(Arc::new(ParquetFormat::default())).with_file_extension(".parquet");
    let config = ListingTableConfig::new_with_multi_paths(urls)
        .with_listing_options(options)
        .with_schema(schema);
    Ok(ListingTable::try_new(config)?)
}

/// Rows as a plan that can be sent to another process: a list of values.
fn values(batch: &RecordBatch) -> Result<LogicalPlan> {
    let mut rows: Vec<Vec<Expr>> = Vec::with_capacity(batch.num_rows());
    for row in 0..batch.num_rows() {
        let cells =
            batch.columns().iter().map(|column| Ok(lit(ScalarValue::try_from_array(column, row)?)));
        rows.push(cells.collect::<Result<_, datafusion::error::DataFusionError>>()?);
    }
    // The columns of a list of values have these names.
    let names = batch.schema();
    let named = names
        .fields()
        .iter()
        .enumerate()
        .map(|(i, field)| ident(format!("column{}", i + 1)).alias(field.name()));
    Ok(LogicalPlanBuilder::values(rows)?.project(named)?.build()?)
}

/// A plan without rows, with these columns.
fn nothing(schema: &SchemaRef) -> Result<LogicalPlan> {
    let columns = schema
        .fields()
        .iter()
        .map(|field| Ok(lit(ScalarValue::try_from(field.data_type())?).alias(field.name())))
        .collect::<Result<Vec<_>, datafusion::error::DataFusionError>>()?;
    Ok(LogicalPlanBuilder::empty(true).project(columns)?.filter(lit(false))?.build()?)
}
