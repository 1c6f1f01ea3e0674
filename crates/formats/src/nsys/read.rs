//! From a chunk of a table to its rows.

use gpuwhy_schema::names;

use super::chunk::{Chunk, Contents};
use super::piece::{Piece, PieceBuilder};
use super::report::Report;
use crate::Result;

impl Report {
    /// Reads one chunk, on any thread.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    pub fn read(&self, chunk: &Chunk) -> Result<Piece> {
        let Some(table) = self.database.table(chunk.table) else { return Ok(Piece::default()) };
        let mut out = PieceBuilder::new(self, chunk.table);
        let leaves = &chunk.leaves;
        match chunk.contents {
            Contents::Kernels => self.kernels(table, leaves, &mut out)?,
            Contents::Copies => self.copies(table, leaves, &mut out)?,
            Contents::Memsets => self.memsets(table, leaves, &mut out)?,
            Contents::Synchronizations => self.synchronizations(table, leaves, &mut out)?,
            Contents::CudaCalls => self.cuda_calls(table, leaves, &mut out)?,
            Contents::Nvtx => self.nvtx(table, leaves, &mut out)?,
            Contents::OsCalls => self.calls(table, leaves, "nameId", names::OS_CALLS, &mut out)?,
            Contents::Mpi => self.calls(table, leaves, "textId", names::MPI_CALLS, &mut out)?,
            Contents::Overhead => {
                self.calls(table, leaves, "nameId", names::PROFILER_OVERHEAD, &mut out)?
            }
            Contents::Scheduling => self.scheduling(table, leaves, &mut out)?,
            Contents::GpuMetrics => self.gpu_metrics(table, leaves, &mut out)?,
            Contents::CpuFaults => self.cpu_faults(table, leaves, &mut out)?,
            Contents::GpuFaults => self.gpu_faults(table, leaves, &mut out)?,
            Contents::Chains => self.chains(table, leaves, &mut out)?,
            Contents::Samples => self.samples(table, leaves, &mut out)?,
        }
        Ok(out.piece)
    }
}
