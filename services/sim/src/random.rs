//! Numbers drawn from one seed. Each part of a world has a stream of its own, so that leaving out a fault disturbs the others little.

/// A stream of numbers (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Random {
    /// The stream of a seed that bears this name and number.
    pub fn of(seed: u64, name: &str, number: u64) -> Self {
        let named = name.bytes().fold(mix(seed ^ 0x9e37_79b9_7f4a_7c15), |state, byte| mix(state ^ u64::from(byte)));
        Self(mix(named ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `end`; 0 when there is none.
    pub fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.draw() % end }
    }

    /// A number of `first..=last`.
    pub fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last.saturating_sub(first) + 1)
    }

    /// True in so many of a hundred cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of several.
    ///
    /// # Panics
    /// When there are none.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_repeat_and_differ() {
        let first = |name, number| Random::of(7, name, number).draw();
        assert_eq!(first("a", 1), first("a", 1));
        assert!(first("a", 1) != first("a", 2) && first("a", 1) != first("b", 1));
        let mut random = Random::of(1, "range", 0);
        assert!((0..1000).all(|_| (3..=5).contains(&random.between(3, 5))));
        assert_eq!(random.below(0), 0);
    }
}
