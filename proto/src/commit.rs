//! Commit times and commit ids.

use std::fmt;

/// A time on a region's clock, microseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommitTime(pub u64);

impl CommitTime {
    /// This time less `micros`, not below the epoch.
    pub fn minus_micros(self, micros: u64) -> Self {
        Self(self.0.saturating_sub(micros))
    }

    /// Microseconds from `earlier` to this time, 0 if it is later.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// 48 random bits drawn when a process starts: two processes never make the same commit id,
/// also when an operator gave both the same name (CQL would overwrite one row by the other, silently).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incarnation(u64);

impl Incarnation {
    /// Keeps the low 48 bits of a random number.
    pub fn from_random(random: u64) -> Self {
        Self(random & 0xffff_ffff_ffff)
    }
}

/// Orders the events of a key. From the most significant bit: commit time in microseconds (64 bits),
/// incarnation (48), index within the change row (16). Byte order is big endian wherever it is stored,
/// so that bytes, numbers and time sort alike.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommitId(pub u128);

impl CommitId {
    /// The id of a change row, and of its first event.
    pub fn of_row(time: CommitTime, incarnation: Incarnation) -> Self {
        Self(u128::from(time.0) << 64 | u128::from(incarnation.0) << 16)
    }

    /// The id of event `index` of the row that has this id.
    pub fn at_index(self, index: u16) -> Self {
        Self(self.0 & !0xffff | u128::from(index))
    }

    /// The id of the row that holds this event.
    pub fn row(self) -> Self {
        Self(self.0 & !0xffff)
    }

    /// The commit time within.
    pub fn time(self) -> CommitTime {
        CommitTime((self.0 >> 64) as u64)
    }

    /// The least id that any row of `time` can have.
    pub fn first_at(time: CommitTime) -> Self {
        Self(u128::from(time.0) << 64)
    }

    /// The greatest id that any event of `time` can have.
    pub fn last_at(time: CommitTime) -> Self {
        Self(u128::from(time.0) << 64 | u128::from(u64::MAX))
    }

    /// 16 bytes, big endian.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// Reads 16 bytes, big endian; `None` for any other length.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Self(u128::from_be_bytes(bytes.try_into().ok()?)))
    }
}

impl fmt::Display for CommitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for CommitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bytes_sort_as_time_then_incarnation_then_index(a in any::<(u64, u64, u16)>(), b in any::<(u64, u64, u16)>()) {
            let id = |(time, random, index): (u64, u64, u16)| CommitId::of_row(CommitTime(time), Incarnation::from_random(random)).at_index(index);
            let key = |(time, random, index): (u64, u64, u16)| (time, random & 0xffff_ffff_ffff, index);
            prop_assert_eq!(id(a).to_bytes().cmp(&id(b).to_bytes()), key(a).cmp(&key(b)));
            prop_assert_eq!(id(a).cmp(&id(b)), key(a).cmp(&key(b)));
            prop_assert_eq!(CommitId::from_bytes(&id(a).to_bytes()), Some(id(a)));
            prop_assert_eq!(id(a).time(), CommitTime(a.0));
            prop_assert!(CommitId::first_at(CommitTime(a.0)) <= id(a) && id(a) <= CommitId::last_at(CommitTime(a.0)));
        }
    }
}
