//! The columns of detail tables as arguments of the slice or instant that they belong to.

use std::collections::HashMap;

use gpuwhy_schema::{EntityId, Id, Ns, Rows};

use super::packets::{Args, Value};
use super::track_tree::Tree;

fn int(v: i64) -> Value {
    Value::Int(v)
}

fn uint(v: impl Into<u64>) -> Value {
    Value::Uint(v.into())
}

fn text(v: impl AsRef<str>) -> Value {
    Value::Text(v.as_ref().to_owned())
}

fn who(tree: &Tree, id: EntityId) -> Value {
    Value::Text(tree.label(id))
}

fn ns(v: Ns) -> Value {
    Value::Int(v.0)
}

/// The detail rows of some rows, by the span or mark that they belong to.
pub struct Details<'a> {
    rows: &'a Rows,
    at: HashMap<Id, Vec<(Table, u32)>>,
}

#[derive(Clone, Copy)]
enum Table {
    Kernel,
    Copy,
    Collective,
    Step,
    Request,
    GpuRequest,
    Io,
    Gthread,
    Wakeup,
    Message,
    Attr,
}

impl<'a> Details<'a> {
    /// Of these rows.
    pub fn of(rows: &'a Rows) -> Details<'a> {
        let mut at: HashMap<Id, Vec<(Table, u32)>> = HashMap::new();
        macro_rules! index {
            ($($table:ident as $kind:ident),+) => {$(
                for (i, row) in rows.$table.iter().enumerate() {
                    at.entry(row.id).or_default().push((Table::$kind, i as u32));
                }
            )+};
        }
        index!(kernel as Kernel, copy as Copy, collective as Collective, step as Step);
        index!(request as Request, gpu_request as GpuRequest, io as Io, gthread as Gthread);
        index!(wakeup as Wakeup, message as Message, attr as Attr);
        Details { rows, at }
    }

    /// The wakeup that a mark stands for.
    pub fn wakeup(&self, id: Id) -> Option<&'a gpuwhy_schema::Wakeup> {
        let list = self.at.get(&id)?;
        let (_, row) = list.iter().find(|(t, _)| matches!(t, Table::Wakeup))?;
        self.rows.wakeup.get(*row as usize)
    }

    /// All columns of all details of `id`, with the labels of entities in place of their ids.
    pub fn args(&self, id: Id, tree: &Tree) -> Args {
        let (rows, mut args) = (self.rows, Args::new());
        for &(table, row) in self.at.get(&id).into_iter().flatten() {
            let row = row as usize;
            match table {
                Table::Kernel => kernel(&rows.kernel[row], tree, &mut args),
                Table::Copy => copy(&rows.copy[row], tree, &mut args),
                Table::Collective => collective(&rows.collective[row], &mut args),
                Table::Step => step(&rows.step[row], tree, &mut args),
                Table::Request => request(&rows.request[row], &mut args),
                Table::GpuRequest => gpu_request(&rows.gpu_request[row], tree, &mut args),
                Table::Io => io(&rows.io[row], tree, &mut args),
                Table::Gthread => gthread(&rows.gthread[row], &mut args),
                Table::Wakeup => wakeup(&rows.wakeup[row], tree, &mut args),
                Table::Message => message(&rows.message[row], &mut args),
                Table::Attr => attr(&rows.attr[row], &mut args),
            }
        }
        args
    }
}

fn kernel(k: &gpuwhy_schema::Kernel, tree: &Tree, args: &mut Args) {
    args.push(("gpu", who(tree, k.gpu)));
    args.push(("grid", text(format!("{}x{}x{}", k.grid_x, k.grid_y, k.grid_z))));
    let block = format!("{}x{}x{}", k.block_x, k.block_y, k.block_z);
    args.push(("block", text(block)));
    args.extend(k.correlation.map(|v| ("correlation", uint(v))));
    args.extend(k.registers.map(|v| ("registers", uint(v))));
    args.extend(k.shared_bytes.map(|v| ("shared_bytes", uint(v))));
    args.extend(k.graph_node.map(|v| ("graph_node", uint(v))));
}

fn copy(c: &gpuwhy_schema::Copy, tree: &Tree, args: &mut Args) {
    args.push(("kind", text(c.kind.as_str())));
    args.push(("bytes", uint(c.bytes)));
    args.extend(c.from.map(|v| ("from", who(tree, v))));
    args.extend(c.to.map(|v| ("to", who(tree, v))));
    args.extend(c.pinned.as_ref().map(|v| ("pinned", text(v))));
    args.extend(c.correlation.map(|v| ("correlation", uint(v))));
}

fn collective(c: &gpuwhy_schema::Collective, args: &mut Args) {
    args.push(("communicator", uint(c.communicator)));
    args.push(("seq", uint(c.seq)));
    args.push(("op", text(&c.op)));
    args.push(("bytes", uint(c.bytes)));
    args.push(("rank", uint(c.rank)));
    args.push(("ranks", uint(c.ranks)));
    args.extend(c.peer.map(|v| ("peer", uint(v))));
    args.extend(c.algorithm.as_ref().map(|v| ("algorithm", text(v))));
    args.extend(c.protocol.as_ref().map(|v| ("protocol", text(v))));
    args.extend(c.channels.map(|v| ("channels", uint(v))));
}

fn step(s: &gpuwhy_schema::Step, tree: &Tree, args: &mut Args) {
    args.push(("thread", who(tree, s.thread)));
    args.push(("seq", uint(s.seq)));
    args.extend(s.size.map(|v| ("size", int(v))));
    args.extend(s.rank.map(|v| ("rank", uint(v))));
}

fn request(r: &gpuwhy_schema::Request, args: &mut Args) {
    args.push(("key", text(&r.key)));
    args.extend(r.prompt_tokens.map(|v| ("prompt_tokens", uint(v))));
    args.extend(r.output_tokens.map(|v| ("output_tokens", uint(v))));
    args.extend(r.scheduled.map(|v| ("scheduled", ns(v))));
    args.extend(r.first_token.map(|v| ("first_token", ns(v))));
    args.extend(r.outcome.as_ref().map(|v| ("outcome", text(v))));
}

fn gpu_request(r: &gpuwhy_schema::GpuRequest, tree: &Tree, args: &mut Args) {
    args.push(("engine", who(tree, r.engine)));
    args.push(("context", uint(r.context)));
    args.push(("seq", uint(r.seq)));
    args.extend(r.submitted.map(|v| ("submitted", ns(v))));
    args.extend(r.started.map(|v| ("started", ns(v))));
    args.extend(r.priority.map(|v| ("priority", int(v))));
}

fn io(io: &gpuwhy_schema::Io, tree: &Tree, args: &mut Args) {
    args.push(("thread", who(tree, io.thread)));
    args.push(("op", text(io.op.as_str())));
    args.push(("sync", Value::Bool(io.sync)));
    args.push(("bytes", uint(io.bytes)));
    args.push(("sector", uint(io.sector)));
    let queued = io.issued.map(|issued| issued.saturating_sub(io.ts));
    args.extend(queued.map(|v| ("queued_ns", ns(v))));
}

fn gthread(g: &gpuwhy_schema::Gthread, args: &mut Args) {
    args.push(("sm", uint(g.sm)));
    args.push(("block", uint(g.block)));
    args.push(("warp", uint(g.warp)));
    args.extend(g.lane.map(|v| ("lane", uint(v))));
}

fn wakeup(w: &gpuwhy_schema::Wakeup, tree: &Tree, args: &mut Args) {
    args.push(("woken", who(tree, w.woken)));
    args.extend(w.waker.map(|v| ("waker", who(tree, v))));
    args.push(("context", text(w.context.as_str())));
    args.push(("cpu", uint(w.cpu)));
}

fn message(m: &gpuwhy_schema::Message, args: &mut Args) {
    args.push(("direction", text(m.direction.as_str())));
    args.push(("flow", text(format!("{:016x}", m.flow))));
    args.push(("bytes", uint(m.bytes)));
    args.push(("position", uint(m.position)));
}

fn attr(a: &gpuwhy_schema::Attr, args: &mut Args) {
    // The key stands in the value, so that a key that the user chose cannot pass for one of the
    // arguments above.
    args.push(("attr", text(format!("{}={}", a.key, a.value))));
}
