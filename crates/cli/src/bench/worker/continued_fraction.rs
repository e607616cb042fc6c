//! Factoring by continued fractions (Morrison and Brillhart, 1975): integer work in which every number, however
//! short its life, is an object on the heap.
//!
//! The convergents Aₖ/Bₖ of √N satisfy Aₖ² ≡ (-1)ᵏ Qₖ (mod N) with small Qₖ. Those Qₖ that factor over a base of small
//! primes are collected until a product of some of them is a square; then x² ≡ y² (mod N), and gcd(x - y, N) is
//! likely to be a factor.

use anyhow::{Context, Result};
use num_bigint::BigUint;
use std::collections::HashMap;

/// The product of two primes of 54 and 56 bits; the answer takes about a second.
const EXAMPLE: &str = "794739315081862135303763809453847";
/// Primes in the base.
const BASE: usize = 220;

/// Factors the example and says so in one line.
pub(super) fn factor_the_example() -> Result<String> {
    let number: BigUint = EXAMPLE.parse()?;
    let (p, q) = factor(&number).context("no factor found")?;
    Ok(format!("{number} = {p} * {q}\n"))
}

/// A relation: `a`² ≡ ± the product of base primes with these exponents; exponent 0 counts the sign.
struct Relation {
    a: BigUint,
    exponents: Vec<u32>,
}

/// Two factors of `n`, the smaller first, if the expansion of √n gives enough relations.
fn factor(n: &BigUint) -> Option<(BigUint, BigUint)> {
    let base = base_of(n);
    let relations = relations(n, &base);
    let wanted = base.len() + 1;
    // Gauss's elimination over exponents modulo 2, one row per relation, remembering which relations a row is the product of.
    let mut pivots: HashMap<usize, (Vec<bool>, Vec<bool>)> = HashMap::new();
    for (number, relation) in relations.iter().enumerate() {
        let mut row: Vec<bool> = relation
            .exponents
            .iter()
            .map(|exponent| exponent % 2 == 1)
            .collect();
        let mut members = vec![false; relations.len()];
        members[number] = true;
        loop {
            let Some(column) = (0..wanted).find(|&column| row[column]) else {
                match try_square(n, &base, &relations, &members) {
                    None => break,
                    found => return found,
                }
            };
            let Some((pivot, of_pivot)) = pivots.get(&column) else {
                pivots.insert(column, (row, members));
                break;
            };
            row.iter_mut()
                .zip(pivot)
                .for_each(|(bit, other)| *bit ^= other);
            members
                .iter_mut()
                .zip(of_pivot)
                .for_each(|(bit, other)| *bit ^= other);
        }
    }
    None
}

/// The first primes modulo which `n` is a square; others can not divide a Qₖ.
fn base_of(n: &BigUint) -> Vec<u64> {
    let mut base = vec![2];
    let mut candidate = 3_u64;
    while base.len() < BASE {
        let prime = (3..)
            .step_by(2)
            .take_while(|d| d * d <= candidate)
            .all(|d| !candidate.is_multiple_of(d));
        let (half, modulus) = (BigUint::from((candidate - 1) / 2), BigUint::from(candidate));
        if prime && n.modpow(&half, &modulus) <= BigUint::from(1_u8) {
            base.push(candidate);
        }
        candidate += 2;
    }
    base
}

/// Expands √n until there are more relations than primes, or the expansion repeats.
fn relations(n: &BigUint, base: &[u64]) -> Vec<Relation> {
    let one = BigUint::from(1_u8);
    let root = n.sqrt();
    let (mut p, mut q, mut a) = (BigUint::ZERO, one.clone(), root.clone());
    let (mut before, mut convergent) = (one.clone(), &root % n);
    let mut found = Vec::new();
    let mut negative = false;
    while found.len() < base.len() + 12 {
        p = &a * &q - &p;
        q = (n - &p * &p) / &q;
        if q == one {
            break;
        }
        a = (&root + &p) / &q;
        negative = !negative;
        if let Some(exponents) = smooth(&q, base, negative) {
            found.push(Relation {
                a: convergent.clone(),
                exponents,
            });
        }
        let next = (&a * &convergent + &before) % n;
        before = std::mem::replace(&mut convergent, next);
    }
    found
}

/// The exponents of `q` over the base, if nothing else divides it. Gives up early on what has few small factors.
fn smooth(q: &BigUint, base: &[u64], negative: bool) -> Option<Vec<u32>> {
    let mut exponents = vec![0; base.len() + 1];
    exponents[0] = u32::from(negative);
    let mut rest = q.clone();
    let mut first_limit = true;
    for (number, &prime) in base.iter().enumerate() {
        if number >= 30 && first_limit {
            first_limit = false;
            if rest.bits() + 12 > q.bits() {
                return None;
            }
        }
        while &rest % prime == BigUint::ZERO {
            rest /= prime;
            exponents[number + 1] += 1;
        }
    }
    (rest == BigUint::from(1_u8)).then_some(exponents)
}

/// The factors that the product of `members` gives, if it gives any.
fn try_square(
    n: &BigUint,
    base: &[u64],
    relations: &[Relation],
    members: &[bool],
) -> Option<(BigUint, BigUint)> {
    let mut x = BigUint::from(1_u8);
    let mut exponents = vec![0_u32; base.len() + 1];
    for (relation, _) in relations.iter().zip(members).filter(|(_, member)| **member) {
        x = x * &relation.a % n;
        exponents
            .iter_mut()
            .zip(&relation.exponents)
            .for_each(|(sum, exponent)| *sum += exponent);
    }
    let mut y = BigUint::from(1_u8);
    for (prime, exponent) in base.iter().zip(&exponents[1..]) {
        y = y * BigUint::from(*prime).modpow(&BigUint::from(exponent / 2), n) % n;
    }
    let factor = gcd(x + n - y, n.clone());
    if factor == BigUint::from(1_u8) || factor == *n {
        return None;
    }
    let other = n / &factor;
    Some(if factor < other {
        (factor, other)
    } else {
        (other, factor)
    })
}

fn gcd(mut a: BigUint, mut b: BigUint) -> BigUint {
    while b != BigUint::ZERO {
        (a, b) = (b.clone(), a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_factored() {
        for (p, q) in [(1_000_003_u64, 1_000_033_u64), (998_244_353, 1_000_000_007)] {
            let n = BigUint::from(p) * q;
            assert_eq!(
                factor(&n),
                Some((BigUint::from(p.min(q)), BigUint::from(p.max(q))))
            );
        }
    }

    #[test]
    fn the_greatest_common_divisor_is_euclids() {
        assert_eq!(
            gcd(BigUint::from(84_u8), BigUint::from(36_u8)),
            BigUint::from(12_u8)
        );
    }
}
