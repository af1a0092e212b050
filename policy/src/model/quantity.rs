//! Kubernetes quantities: `500m`, `1Gi`, `2`, `1.5`, `1e3`.

use std::fmt;

use thiserror::Error;

/// A quantity that is not negative, in thousandths, rounded up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantity {
    milli: u128,
}

/// Why a text is no quantity.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum QuantityError {
    /// No number, or an unknown suffix.
    #[error("expected a quantity such as `500m`, `2` or `1Gi`")]
    Malformed,
    /// Quantities here are not negative.
    #[error("a quantity here must not be negative")]
    Negative,
    /// More than any computer has.
    #[error("the quantity is too large")]
    TooLarge,
}

/// Most that is accepted, in whole units: 2^63.
const MOST: u128 = 1 << 63;

impl Quantity {
    /// Reads a quantity.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        if text.starts_with('-') {
            return Err(QuantityError::Negative);
        }
        let body = text.strip_prefix('+').unwrap_or(text);
        let end = body.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(body.len());
        let (number, suffix) = body.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let digits = format!("{whole}{fraction}");
        if digits.is_empty() || fraction.contains('.') || digits.len() > 30 {
            return Err(if digits.len() > 30 { QuantityError::TooLarge } else { QuantityError::Malformed });
        }
        let mantissa: u128 = digits.parse().map_err(|_| QuantityError::Malformed)?;
        let (factor, power) = scale(suffix).ok_or(QuantityError::Malformed)?;
        // Thousandths: three more powers of ten, less those of the fraction.
        let power = power + 3 - i32::try_from(fraction.len()).unwrap_or(i32::MAX);
        let base = mantissa.checked_mul(factor).ok_or(QuantityError::TooLarge)?;
        let ten = 10u128.checked_pow(power.unsigned_abs());
        let milli = match (power < 0, ten) {
            (true, Some(ten)) => base.div_ceil(ten),
            (true, None) => u128::from(base > 0),
            (false, Some(ten)) => base.checked_mul(ten).ok_or(QuantityError::TooLarge)?,
            (false, None) if base == 0 => 0,
            (false, None) => return Err(QuantityError::TooLarge),
        };
        if milli > MOST * 1000 { Err(QuantityError::TooLarge) } else { Ok(Self { milli }) }
    }

    /// In thousandths: millicores for CPU.
    pub fn milli(self) -> u64 {
        u64::try_from(self.milli).unwrap_or(u64::MAX)
    }

    /// In whole units, rounded up: bytes for memory.
    pub fn units(self) -> u64 {
        u64::try_from(self.milli.div_ceil(1000)).unwrap_or(u64::MAX)
    }
}

/// Factor and power of ten of a suffix.
fn scale(suffix: &str) -> Option<(u128, i32)> {
    Some(match suffix {
        "" => (1, 0),
        "n" => (1, -9),
        "u" => (1, -6),
        "m" => (1, -3),
        "k" => (1, 3),
        "M" => (1, 6),
        "G" => (1, 9),
        "T" => (1, 12),
        "P" => (1, 15),
        "E" => (1, 18),
        "Ki" => (1 << 10, 0),
        "Mi" => (1 << 20, 0),
        "Gi" => (1 << 30, 0),
        "Ti" => (1 << 40, 0),
        "Pi" => (1 << 50, 0),
        "Ei" => (1 << 60, 0),
        _ => (1, suffix.strip_prefix(['e', 'E'])?.parse::<i8>().ok()?.into()),
    })
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.milli.is_multiple_of(1000) {
            write!(f, "{}", self.milli / 1000)
        } else {
            write!(f, "{}m", self.milli)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn as_kubernetes_reads_them() {
        for (text, milli) in [
            ("0", 0),
            ("500m", 500),
            ("2", 2000),
            ("1.5", 1500),
            (".5", 500),
            ("5.", 5000),
            ("1Ki", 1_024_000),
            ("1.5Gi", 1_610_612_736_000),
            ("1k", 1_000_000),
            ("1e3", 1_000_000),
            ("1E-3", 1),
            ("1n", 1),
            ("+3", 3000),
        ] {
            assert_eq!(Quantity::parse(text).map(Quantity::milli), Ok(milli), "{text}");
        }
        assert_eq!(Quantity::parse("1500m").unwrap().units(), 2, "rounded up");
        for (text, error) in [
            ("", QuantityError::Malformed),
            (".", QuantityError::Malformed),
            ("1.2.3", QuantityError::Malformed),
            ("1 Gi", QuantityError::Malformed),
            ("1GB", QuantityError::Malformed),
            ("much", QuantityError::Malformed),
            ("-1", QuantityError::Negative),
            ("99999E", QuantityError::TooLarge),
            ("1e99", QuantityError::TooLarge),
        ] {
            assert_eq!(Quantity::parse(text), Err(error), "{text}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics_and_all_print_back(text in "[0-9.eEkKMGi+m-]{0,12}") {
            if let Ok(read) = Quantity::parse(&text) {
                prop_assert_eq!(Quantity::parse(&read.to_string()), Ok(read));
            }
        }
    }
}
