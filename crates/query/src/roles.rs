//! The processes of a cluster: a scheduler, which plans queries and distributes their tasks, and executors,
//! which run them.
//!
//! Both are Ballista's, with the functions and stores of this crate. All processes of a cluster must
//! therefore run this program, in the same version.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use ballista_core::registry::BallistaFunctionRegistry;
use ballista_executor::executor_process::{ExecutorProcessConfig, start_executor_process};
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::config::SchedulerConfig;
use ballista_scheduler::scheduler_process::start_server;
use datafusion::execution::object_store::ObjectStoreRegistry;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::prelude::SessionConfig;
use log::info;

use crate::served::Served;
use crate::stores::Stores;
use crate::{functions, session, stores};

/// Plans queries, distributes their tasks, and watches over the executors.
#[derive(Clone, Debug, clap::Args)]
pub struct Scheduler {
    /// Address to listen at.
    #[arg(long, default_value = "127.0.0.1:50050", value_name = "ADDRESS:PORT")]
    pub bind: SocketAddr,
    /// Host name by which executors and clients reach this process.
    #[arg(long, default_value = "localhost", value_name = "HOST")]
    pub external_host: String,
    /// An executor without a heartbeat for this long is given up, and its tasks are run again by others,
    /// s.
    #[arg(long, default_value_t = 20, value_name = "SECONDS")]
    pub executor_timeout: u64,
    #[command(flatten)]
    served: Served,
}

/// Runs tasks, and keeps their intermediate results on its disk.
#[derive(Clone, Debug, clap::Args)]
pub struct Executor {
    /// Address of the scheduler.
    #[arg(long, default_value = "localhost:50050", value_name = "HOST:PORT")]
    pub scheduler: String,
    /// Address to listen at for other executors; the next port is for the scheduler.
    #[arg(long, default_value = "127.0.0.1:50051", value_name = "ADDRESS:PORT")]
    pub bind: SocketAddr,
    /// Host name by which others reach this process; by default the address that the scheduler sees.
    #[arg(long, value_name = "HOST")]
    pub external_host: Option<String>,
    /// Tasks that run at a time; by default one a CPU.
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Memory that tasks share before they spill, MiB; by default 70 % of the memory of the machine or of
    /// its control group.
    #[arg(long, value_name = "MIB")]
    pub memory: Option<u64>,
    /// Directory for intermediate results; by default a temporary one.
    #[arg(long, value_name = "DIR")]
    pub work_dir: Option<PathBuf>,
    #[command(flatten)]
    served: Served,
}

/// Seconds between two heartbeats of an executor.
const HEARTBEAT: u64 = 2;
/// How long an executor tries to connect to its scheduler, s: both may be started together.
const CONNECT: u16 = 60;

fn state(
    config: SessionConfig,
    stores: Arc<dyn ObjectStoreRegistry>,
) -> datafusion::error::Result<SessionState> {
    let mut state = SessionStateBuilder::new()
        .with_default_features()
        .with_optimizer_rules(ballista_core::optimizer::ballista_default_optimizer_rules())
        .with_config(config)
        .with_runtime_env(stores::runtime(stores, None)?)
        .build();
    functions::register(&mut state)?;
    Ok(state)
}

/// Runs a scheduler until the process ends.
///
/// # Errors
/// It cannot listen at its address.
pub async fn scheduler(args: &Scheduler) -> Result<()> {
    let stores: Arc<dyn ObjectStoreRegistry> = Arc::new(args.served.only(Stores::default())?);
    let mut config = SchedulerConfig::default()
        .with_hostname(args.external_host.clone())
        .with_port(args.bind.port())
        .with_override_config_producer(Arc::new(|| session::config(true)))
        .with_override_session_builder(Arc::new(move |config| state(config, stores.clone())));
    config.bind_host = args.bind.ip().to_string();
    config.executor_timeout_seconds = args.executor_timeout;
    config.no_executors_grace_period_seconds = args.executor_timeout;
    config.expire_dead_executor_interval_seconds = 3;
    config.grpc_server_max_decoding_message_size = session::MESSAGE;
    config.grpc_server_max_encoding_message_size = session::MESSAGE;
    config.grpc_client_max_message_size = session::MESSAGE;
    let cluster =
        BallistaCluster::new_from_config(&config).await.context("cannot set up the cluster")?;
    info!("scheduler at {}", args.bind);
    start_server(cluster, args.bind, Arc::new(config))
        .await
        .with_context(|| format!("cannot run a scheduler at {}", args.bind))
}

/// Runs an executor until the process ends.
///
/// # Errors
/// It cannot listen at its address, or cannot connect to the scheduler.
pub async fn executor(args: &Executor) -> Result<()> {
    let (host, port) = match args.scheduler.rsplit_once(':') {
        Some((host, port)) => (host, port.parse().ok()),
        None => (args.scheduler.as_str(), Some(50050)),
    };
    let port = port.with_context(|| format!("`{}` is not HOST:PORT", args.scheduler))?;
    let stores: Arc<dyn ObjectStoreRegistry> = Arc::new(args.served.only(Stores::default())?);
    let mut registry = BallistaFunctionRegistry::default();
    let (scalars, aggregates) = functions::all();
    let named = |f: Arc<datafusion::logical_expr::ScalarUDF>| (f.name().to_owned(), f);
    registry.scalar_functions.extend(scalars.into_iter().map(named));
    let named = |f: Arc<datafusion::logical_expr::AggregateUDF>| (f.name().to_owned(), f);
    registry.aggregate_functions.extend(aggregates.into_iter().map(named));

    // A temporary directory is removed when this process ends.
    let (work_dir, _held) = match &args.work_dir {
        Some(dir) => (dir.clone(), None),
        None => {
            let held = tempfile::Builder::new().prefix("gpuwhy-executor.").tempdir()?;
            (held.path().to_owned(), Some(held))
        }
    };
    let grpc_port =
        args.bind.port().checked_add(1).context("the port of --bind must be below 65535")?;
    let config = ExecutorProcessConfig {
        bind_host: args.bind.ip().to_string(),
        external_host: args.external_host.clone(),
        port: args.bind.port(),
        grpc_port,
        scheduler_host: host.into(),
        scheduler_port: port,
        scheduler_connect_timeout_seconds: CONNECT,
        vcores: args.threads.unwrap_or(0),
        work_dir: Some(work_dir.to_string_lossy().into_owned()),
        executor_heartbeat_interval_seconds: HEARTBEAT,
        memory_pool_size: args.memory.map(|mib| mib << 20),
        grpc_max_decoding_message_size: session::MESSAGE,
        grpc_max_encoding_message_size: session::MESSAGE,
        override_function_registry: Some(Arc::new(registry)),
        override_runtime_producer: Some(Arc::new(move |_: &SessionConfig| {
            stores::runtime(stores.clone(), None)
        })),
        override_config_producer: Some(Arc::new(|| session::config(true))),
        ..ExecutorProcessConfig::default()
    };
    start_executor_process(Arc::new(config)).await.with_context(|| {
        format!("cannot run an executor at {} for the scheduler at {}", args.bind, args.scheduler)
    })
}
