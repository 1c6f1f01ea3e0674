//! A kernel with programs in it, run in the simulator.

use gpuwhy_gpubpf::ptx::Module;
use gpuwhy_gpubpf::sim::{Config, Contents, Device, Facts, Launch, Maps};
use gpuwhy_gpubpf::splice::{How, Plan};
use gpuwhy_gpubpf::{Attach, Budget, Object};

/// A launch of a kernel that takes one pointer, or nothing.
pub struct Run<'a> {
    pub text: &'a str,
    pub kernel: &'a str,
    pub blocks: u32,
    pub threads: u32,
    /// Words of 32 bits that the pointer leads to, all zero.
    pub words: usize,
    pub sms: u32,
}

impl Run<'_> {
    /// Runs it with the programs of an object, each of which has to be accepted; what it did and the maps.
    pub fn with(&self, object: &[u8]) -> (Facts, Vec<Contents>) {
        let budget = Budget { warp_instructions: 100_000, ..Budget::default() };
        let mut plan = Plan::new(How { budget, ..How::default() });
        plan.object(&Object::read(object).unwrap());
        for probe in plan.probes().iter().filter(|probe| probe.attach != Attach::Host) {
            assert!(probe.verdict.is_ok(), "{}: {:?}", probe.name, probe.verdict);
        }
        let spliced = plan.splice(&Module::read(self.text).unwrap()).unwrap();
        assert!(
            spliced.kernels.iter().any(|k| k.name == self.kernel && k.sites > 0),
            "{:?}",
            spliced.notes
        );
        let mut device = Device::new(Config { sms: self.sms, ..Config::default() });
        let pointer = device.upload(&vec![0; 4 * self.words.max(1)]).unwrap();
        let image = device.load(&Module::read(&spliced.text).unwrap()).unwrap();
        let threads = u64::from(self.blocks) * u64::from(self.threads);
        let maps = Maps::bind(&mut device, &image, &plan.table(), threads, 1).unwrap();
        let takes = image.parameters(self.kernel).unwrap().len();
        let launch = Launch {
            kernel: self.kernel,
            grid: [self.blocks, 1, 1],
            block: [self.threads, 1, 1],
            dynamic_shared: 0,
            parameters: &vec![pointer.to_le_bytes().to_vec(); takes],
        };
        let facts = device.launch(&image, &launch).unwrap_or_else(|error| panic!("{error}"));
        (facts, maps.read(&device))
    }
}

/// The map of this name.
pub fn map<'a>(maps: &'a [Contents], name: &str) -> &'a Contents {
    maps.iter().find(|contents| contents.map.name == name).unwrap()
}

/// Bytes as numbers of 64 bits; the last one may have fewer.
pub fn words(bytes: &[u8]) -> Vec<u64> {
    let word = |part: &[u8]| part.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte));
    bytes.chunks(8).map(word).collect()
}
