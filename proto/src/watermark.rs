//! Watermarks as intervals that must chain (rule R4 of docs/architecture.md).

use crate::CommitTime;

/// What a watermark did to a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainStep {
    /// The chain now reaches further.
    Advanced,
    /// It said nothing new.
    Known,
    /// Something between is not covered: the chain stands still.
    Gap,
}

/// What one partition of one origin is known to hold: everything acknowledged in (`since`, `through`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Where the knowledge begins.
    pub since: CommitTime,
    /// Where it ends.
    pub through: CommitTime,
}

impl Chain {
    /// The knowledge that the first watermark of a partition gives.
    pub fn starting_with(from: CommitTime, through: CommitTime) -> Self {
        Self { since: from, through }
    }

    /// Takes one more watermark. It counts only if it begins where the chain stands, or before.
    pub fn advance(&mut self, from: CommitTime, through: CommitTime) -> ChainStep {
        if from > self.through {
            return ChainStep::Gap;
        }
        if through <= self.through {
            return ChainStep::Known;
        }
        self.through = through;
        ChainStep::Advanced
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_stands_still_at_a_gap() {
        let at = CommitTime;
        let mut chain = Chain::starting_with(at(10), at(20));
        assert_eq!(chain.advance(at(15), at(18)), ChainStep::Known);
        assert_eq!(chain.advance(at(20), at(30)), ChainStep::Advanced);
        assert_eq!(chain.advance(at(31), at(40)), ChainStep::Gap);
        assert_eq!(chain.advance(at(25), at(40)), ChainStep::Advanced);
        assert_eq!(chain, Chain { since: at(10), through: at(40) });
    }
}
