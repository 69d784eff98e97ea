//! Areas that are as large as what they stand for, near to squares (Bruls, Huizing, van Wijk 2000).

/// A rectangle.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Area {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// Divides `whole` among the sizes, which are positive and the largest first.
pub(super) fn squarified(sizes: &[f64], whole: Area) -> Vec<Area> {
    let total: f64 = sizes.iter().sum();
    if total <= 0.0 {
        return Vec::new();
    }
    let scale = whole.width * whole.height / total;
    let areas: Vec<f64> = sizes.iter().map(|size| size * scale).collect();
    let (mut left, mut done, mut rest) = (whole, Vec::with_capacity(areas.len()), areas.as_slice());
    while !rest.is_empty() {
        let side = left.width.min(left.height);
        // As many in one row as make it squarer.
        let mut count = 1;
        while count < rest.len() && worst(&rest[..=count], side) <= worst(&rest[..count], side) {
            count += 1;
        }
        let (row, later) = rest.split_at(count);
        let sum: f64 = row.iter().sum();
        let depth = if side > 0.0 { sum / side } else { 0.0 };
        let mut at = 0.0;
        for area in row {
            let length = if depth > 0.0 { area / depth } else { 0.0 };
            done.push(match left.width >= left.height {
                true => Area { x: left.x, y: left.y + at, width: depth, height: length },
                false => Area { x: left.x + at, y: left.y, width: length, height: depth },
            });
            at += length;
        }
        match left.width >= left.height {
            true => (left.x, left.width) = (left.x + depth, left.width - depth),
            false => (left.y, left.height) = (left.y + depth, left.height - depth),
        }
        rest = later;
    }
    done
}

/// The largest of the ratios of a row's sides.
fn worst(row: &[f64], side: f64) -> f64 {
    let sum: f64 = row.iter().sum();
    let (square, side) = (sum * sum, side * side);
    row.iter().map(|area| (side * area / square).max(square / (side * area))).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_are_as_large_as_their_sizes_and_fill_the_whole() {
        let whole = Area { x: 0.0, y: 0.0, width: 600.0, height: 400.0 };
        for sizes in [vec![1.0], vec![6.0, 6.0, 4.0, 3.0, 2.0, 2.0, 1.0], vec![1e12, 1.0, 1.0], vec![1.0; 40]] {
            let areas = squarified(&sizes, whole);
            let total: f64 = sizes.iter().sum();
            assert_eq!(areas.len(), sizes.len());
            for (size, area) in sizes.iter().zip(&areas) {
                assert!((area.width * area.height - size / total * 240_000.0).abs() < 1e-3, "{area:?}");
                assert!(area.x >= -1e-6 && area.x + area.width <= 600.0 + 1e-6, "{area:?}");
                assert!(area.y >= -1e-6 && area.y + area.height <= 400.0 + 1e-6, "{area:?}");
            }
        }
        assert!(squarified(&[], whole).is_empty() && squarified(&[0.0], whole).is_empty());
    }
}
