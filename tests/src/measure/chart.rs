//! Draws how many of several kinds of figures are at most so large.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use plotters::prelude::SVGBackend;
use plotters::{
    chart::{ChartBuilder, SeriesLabelPosition},
    drawing::IntoDrawingArea,
    element::PathElement,
    series::LineSeries,
    style::{BLACK, Color, RGBColor, WHITE},
};

use super::Series;

const SIZE: (u32, u32) = (760, 400);
/// Told apart by people who do not see red and green, and in grey (Okabe and Ito).
const COLOURS: [RGBColor; 4] =
    [RGBColor(0, 0, 0), RGBColor(230, 159, 0), RGBColor(0, 114, 178), RGBColor(0, 158, 115)];

/// Writes the cumulative distributions of the series as SVG, milliseconds against percent of all.
pub fn cumulative(file: &Path, title: &str, series: &[Series]) -> Result<()> {
    draw(file, title, series)
        .map_err(|error| anyhow!("{error}"))
        .with_context(|| format!("drawing {}", file.display()))
}

fn draw(file: &Path, title: &str, series: &[Series]) -> Result<(), Box<dyn std::error::Error>> {
    let longest = series.iter().filter_map(|one| one.times.sorted().last()).copied().fold(1.0, f64::max);
    let area = SVGBackend::new(file, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 16))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(50)
        .build_cartesian_2d(0.0..longest * 1.05, 0.0..100.0)?;
    chart
        .configure_mesh()
        .x_desc("milliseconds")
        .y_desc("percent at most so long")
        .x_max_light_lines(1)
        .y_max_light_lines(1)
        .draw()?;
    for (one, colour) in series.iter().zip(COLOURS.iter().cycle()) {
        let line = chart.draw_series(LineSeries::new(steps(one.times.sorted()), colour.stroke_width(2)))?;
        let key = |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2));
        line.label(one.name.as_str()).legend(key);
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .border_style(BLACK)
        .background_style(WHITE)
        .draw()?;
    area.present()?;
    Ok(())
}

/// Corners of the stairs that rise by one share at each figure.
fn steps(sorted: &[f64]) -> Vec<(f64, f64)> {
    #[expect(clippy::cast_precision_loss, reason = "there are a few hundred figures")]
    let share = |count: usize| 100.0 * count as f64 / sorted.len() as f64;
    let corners = sorted.iter().enumerate().flat_map(|(n, x)| [(*x, share(n)), (*x, share(n + 1))]);
    corners.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_a_step() {
        assert_eq!(steps(&[1.0, 3.0]), [(1.0, 0.0), (1.0, 50.0), (3.0, 50.0), (3.0, 100.0)]);
        assert!(steps(&[]).is_empty());
    }
}
