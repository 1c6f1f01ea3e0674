//! What the source of an imported file says of it, as `key=value` words of its `config`.

use gpuwhy_schema::Source;

/// The value of a word.
pub fn word<'a>(source: &'a Source, key: &str) -> Option<&'a str> {
    let mut words = source.config.split(' ');
    words.find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

/// By what its times were moved to the clock of the trace, in words.
pub fn aligned_by(source: &Source) -> Option<&str> {
    Some(match word(source, "aligned_by")? {
        "one_host" => "the clock of their host",
        "own_clocks" => "the clocks of their hosts",
        "nothing" => "nothing",
        // The name of a collective.
        by => by,
    })
}

#[cfg(test)]
mod tests {
    use gpuwhy_schema::{Lanes, Rows};

    use super::*;

    #[test]
    fn a_file_says_its_name_and_by_what_it_was_aligned() {
        let of = |config: &str| {
            let (mut lanes, mut rows) = (Lanes::default(), Rows::default());
            lanes.source("nsys", "Nsight Systems", "1", config);
            lanes.drain(&mut rows);
            rows.source.pop().unwrap()
        };
        let source = of("file=a.sqlite files=2 aligned_by=MPI_Allreduce error_ns=7");
        assert_eq!(word(&source, "file"), Some("a.sqlite"));
        assert_eq!(aligned_by(&source), Some("MPI_Allreduce"));
        assert_eq!(aligned_by(&of("aligned_by=own_clocks")), Some("the clocks of their hosts"));
        assert_eq!(aligned_by(&of("file=a.sqlite")), None);
    }
}
