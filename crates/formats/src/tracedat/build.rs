//! Small files that tests write: of both versions, in both byte orders, of two CPUs, with a switch, an interrupt, a text,
//! long and absolute times and lost events.

use std::io::Write as _;

use super::pack::Packing;

/// The kernel's descriptions: name, system and text.
const FORMATS: [(&str, &str, &str); 4] = [
    (
        "sched",
        "sched_switch",
        "\tfield:char prev_comm[8];\toffset:8;\tsize:8;\tsigned:1;\n\
         \tfield:pid_t prev_pid;\toffset:16;\tsize:4;\tsigned:1;\n\
         \tfield:long prev_state;\toffset:20;\tsize:4;\tsigned:1;\n\
         \tfield:char next_comm[8];\toffset:24;\tsize:8;\tsigned:1;\n\
         \tfield:pid_t next_pid;\toffset:32;\tsize:4;\tsigned:1;\n",
    ),
    (
        "irq",
        "irq_handler_entry",
        "\tfield:int irq;\toffset:8;\tsize:4;\tsigned:1;\n\
         \tfield:__data_loc char[] name;\toffset:12;\tsize:4;\tsigned:1;\n",
    ),
    ("irq", "irq_handler_exit", "\tfield:int irq;\toffset:8;\tsize:4;\tsigned:1;\n"),
    (
        "ftrace",
        "print",
        "\tfield:unsigned long ip;\toffset:8;\tsize:8;\tsigned:0;\n\
         \tfield:char buf[];\toffset:16;\tsize:0;\tsigned:1;\n",
    ),
];

const HEADER_PAGE: &str = "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
    \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
    \tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n\
    \tfield: char data;\toffset:16;\tsize:240;\tsigned:1;\n";

/// Bytes of a page.
const PAGE: usize = 256;

/// Writes numbers in a byte order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bytes {
    pub all: Vec<u8>,
    pub is_big: bool,
}

impl Bytes {
    pub fn new(is_big: bool) -> Bytes {
        Bytes { all: Vec::new(), is_big }
    }

    pub fn put(&mut self, value: u64, size: usize) -> &mut Bytes {
        let bytes = if self.is_big { value.to_be_bytes() } else { value.to_le_bytes() };
        self.all.extend_from_slice(if self.is_big { &bytes[8 - size..] } else { &bytes[..size] });
        self
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Bytes {
        self.all.extend_from_slice(bytes);
        self
    }

    /// An entry of a page: its kind, the time since the one before, and what follows.
    fn entry(&mut self, kind: u64, delta: u64) -> &mut Bytes {
        let head = if self.is_big { kind << 27 | delta } else { delta << 5 | kind };
        self.put(head, 4)
    }

    fn event(&mut self, delta: u64, record: &Bytes) -> &mut Bytes {
        let words = record.all.len().div_ceil(4);
        if words <= 28 {
            self.entry(words as u64, delta);
        } else {
            self.entry(0, delta).put(4 * words as u64 + 4, 4);
        }
        self.bytes(&record.all);
        self.bytes(&vec![0; 4 * words - record.all.len()])
    }
}

/// What an event begins with: its type, and the thread.
pub(crate) fn record(is_big: bool, kind: u64, tid: u64) -> Bytes {
    let mut bytes = Bytes::new(is_big);
    bytes.put(kind, 2).put(0, 2).put(tid, 4);
    bytes
}

pub(crate) fn switch(is_big: bool, prev: (&[u8; 8], u64, u64), next: (&[u8; 8], u64)) -> Bytes {
    let mut bytes = record(is_big, 1, prev.1);
    bytes.bytes(prev.0).put(prev.1, 4).put(prev.2, 4).bytes(next.0).put(next.1, 4);
    bytes
}

/// A page with these entries.
fn page(is_big: bool, time: u64, flags: u64, entries: &[u8]) -> Vec<u8> {
    let mut bytes = Bytes::new(is_big);
    bytes.put(time, 8).put(flags | entries.len() as u64, 8).bytes(entries);
    bytes.all.resize(PAGE, 0);
    bytes.all
}

/// The pages of both CPUs.
fn pages(is_big: bool) -> [Vec<u8>; 2] {
    let entries = || Bytes::new(is_big);
    let mut first = entries();
    first.event(0, &switch(is_big, (b"swapper\0", 0, 0), (b"python\0\0", 7)));
    let mut irq = record(is_big, 2, 7);
    irq.put(30, 4).put(4 << 16 | 16, 4).bytes(b"gpu\0");
    first.event(100, &irq);
    let mut exit = record(is_big, 3, 7);
    first.event(50, exit.put(30, 4));
    let mut long = entries();
    // Over 2²⁷ ns after the page's time, and an entry that was taken back.
    long.entry(30, 1000).put(1, 4);
    long.entry(29, 1).put(8, 4).put(0, 4);
    long.event(0, &switch(is_big, (b"python\0\0", 7, 1), (b"swapper\0", 0)));
    let mut text = record(is_big, 4, 0);
    text.put(0xffff_ffff_8000_0000, 8).bytes(&[b'x'; 120]).bytes(b"\n\0");
    let mut second = entries();
    second.entry(31, 5_000).put(7, 4);
    second.event(3, &text);
    let mut stray = record(is_big, 99, 0);
    second.event(1, stray.put(0, 4));
    let lost = 1 << 31;
    [
        [page(is_big, 1000, 0, &first.all), page(is_big, 5000, lost, &long.all)].concat(),
        page(is_big, 2000, 0, &second.all),
    ]
}

fn format(number: usize) -> String {
    let (_, name, fields) = FORMATS[number];
    format!(
        "name: {name}\nID: {}\nformat:\n\
         \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
         \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n{fields}\nprint fmt: \"\"\n",
        number + 1
    )
}

fn headers(bytes: &mut Bytes) {
    for (name, text) in [("header_page\0", HEADER_PAGE), ("header_event\0", "# unused\n")] {
        bytes.bytes(name.as_bytes()).put(text.len() as u64, 8).bytes(text.as_bytes());
    }
}

fn formats(bytes: &mut Bytes, numbers: &[usize]) {
    bytes.put(numbers.len() as u64, 4);
    for number in numbers {
        let text = format(*number);
        bytes.put(text.len() as u64, 8).bytes(text.as_bytes());
    }
}

fn events(bytes: &mut Bytes) {
    bytes.put(2, 4).bytes(b"sched\0");
    formats(bytes, &[0]);
    bytes.bytes(b"irq\0");
    formats(bytes, &[1, 2]);
}

const NAMES: &[u8] = b"7 python\n8 other\n";

/// What a section of perf.data holds of the kernel (version 0.6).
pub(crate) fn tracing_data(is_big: bool) -> Vec<u8> {
    let mut bytes = Bytes::new(is_big);
    bytes.bytes(b"\x17\x08\x44tracing0.6\0").put(is_big.into(), 1).put(8, 1).put(4096, 4);
    descriptions(&mut bytes);
    bytes.all
}

/// All descriptions in the order of version 6.
fn descriptions(bytes: &mut Bytes) {
    headers(bytes);
    formats(bytes, &[3]);
    events(bytes);
    bytes.put(3, 4).bytes(b"sym").put(0, 4);
    bytes.put(NAMES.len() as u64, 8).bytes(NAMES);
}

/// Options: number and content. The last one is of no known kind.
fn options() -> Vec<(u64, Vec<u8>)> {
    vec![
        (5, b"Linux box 6.1.0 x86_64\0".to_vec()),
        (7, b"-500\0".to_vec()),
        (2, b"CPU: 1\nentries: 0\noverrun: 3\n\0".to_vec()),
        (8, b"7 6\n8 6\n\0".to_vec()),
        (77, vec![1, 2, 3]),
    ]
}

/// A file of version 6.
pub(super) fn version_6(is_big: bool) -> Vec<u8> {
    let mut bytes = Bytes::new(is_big);
    bytes.bytes(b"\x17\x08\x44tracing6\0").put(is_big.into(), 1).put(8, 1).put(PAGE as u64, 4);
    descriptions(&mut bytes);
    bytes.put(2, 4).bytes(b"options  \0");
    for (id, data) in options() {
        bytes.put(id, 2).put(data.len() as u64, 4).bytes(&data);
    }
    bytes.put(0, 2).bytes(b"flyrecord\0");
    let [first, second] = pages(is_big);
    let from = (bytes.all.len() + 32).next_multiple_of(PAGE);
    for (at, size) in [(from, first.len()), (from + first.len(), second.len())] {
        bytes.put(at as u64, 8).put(size as u64, 8);
    }
    bytes.all.resize(from, 0);
    bytes.bytes(&first).bytes(&second);
    bytes.all
}

fn pack(packing: Packing, bytes: &[u8]) -> Vec<u8> {
    match packing {
        Packing::None => bytes.to_vec(),
        Packing::Zlib => {
            let fast = flate2::Compression::fast();
            let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), fast);
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        }
        Packing::Zstd => zstd::stream::encode_all(bytes, 1).unwrap(),
    }
}

/// Adds a section, and returns where it lies.
fn section(bytes: &mut Bytes, id: u64, packing: Packing, content: &[u8]) -> u64 {
    let at = bytes.all.len() as u64;
    let packed = pack(packing, content);
    bytes.put(id, 2).put((packing != Packing::None).into(), 2).put(0, 4);
    if packing == Packing::None {
        bytes.put(content.len() as u64, 8).bytes(content);
    } else {
        bytes.put(packed.len() as u64 + 8, 8).put(packed.len() as u64, 4);
        bytes.put(content.len() as u64, 4).bytes(&packed);
    }
    at
}

/// A file of version 7.
pub(super) fn version_7(is_big: bool, packing: Packing) -> Vec<u8> {
    let mut bytes = Bytes::new(is_big);
    bytes.bytes(b"\x17\x08\x44tracing7\0").put(is_big.into(), 1).put(8, 1).put(PAGE as u64, 4);
    let name = match packing {
        Packing::None => &b"none\0\0"[..],
        Packing::Zlib => b"zlib\x001.2\0",
        Packing::Zstd => b"zstd\x001.5\0",
    };
    bytes.bytes(name);
    let to_options = bytes.all.len();
    bytes.put(0, 8);
    let mut parts = [16, 17, 18, 21].map(|id| (id, Bytes::new(is_big)));
    headers(&mut parts[0].1);
    formats(&mut parts[1].1, &[3]);
    events(&mut parts[2].1);
    parts[3].1.put(NAMES.len() as u64, 8).bytes(NAMES);
    let mut all = options();
    for (id, content) in &parts {
        let at = section(&mut bytes, *id, packing, &content.all);
        let mut data = Bytes::new(is_big);
        data.put(at, 8);
        all.push((*id, data.all));
    }
    let mut buffer = Bytes::new(is_big);
    buffer.put(bytes.all.len() as u64, 8).bytes(b"\0mono\0").put(PAGE as u64, 4).put(2, 4);
    bytes.put(3, 2).put((packing != Packing::None).into(), 2).put(0, 4).put(0, 8);
    for (cpu, pages) in pages(is_big).into_iter().enumerate() {
        let at = bytes.all.len();
        if packing == Packing::None {
            bytes.bytes(&pages);
        } else {
            bytes.put((pages.len() / PAGE) as u64, 4);
            for page in pages.chunks(PAGE) {
                let packed = pack(packing, page);
                bytes.put(packed.len() as u64, 4).put(PAGE as u64, 4).bytes(&packed);
            }
        }
        // As trace-cmd does, the number of chunks is not counted.
        let uncounted = if packing == Packing::None { 0 } else { 4 };
        let size = bytes.all.len() - at - uncounted;
        buffer.put(cpu as u64, 4).put(at as u64, 8).put(size as u64, 8);
    }
    all.push((3, buffer.all));
    all.push((0, vec![0; 8]));
    let mut list = Bytes::new(is_big);
    for (id, data) in all {
        list.put(id, 2).put(data.len() as u64, 4).bytes(&data);
    }
    let at = section(&mut bytes, 0, Packing::None, &list.all);
    let mut reference = Bytes::new(is_big);
    reference.put(at, 8);
    bytes.all[to_options..to_options + 8].copy_from_slice(&reference.all);
    bytes.all
}
