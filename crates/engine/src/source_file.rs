//! By what the times of an imported file were moved to the clock of the trace, in words.

use gpuwhy_schema::Source;

/// By what its times were moved to the clock of the trace, in words.
pub fn aligned_by(source: &Source) -> Option<&str> {
    Some(match source.word("aligned_by")? {
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
        assert_eq!(source.word("file"), Some("a.sqlite"));
        assert_eq!(aligned_by(&source), Some("MPI_Allreduce"));
        assert_eq!(aligned_by(&of("aligned_by=own_clocks")), Some("the clocks of their hosts"));
        assert_eq!(aligned_by(&of("file=a.sqlite")), None);
    }
}
