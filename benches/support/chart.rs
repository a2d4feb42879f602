//! Bars of ratios, as an SVG file.

use std::fmt::Write;

const WIDTH: usize = 760;
const MARGIN: usize = 24;
/// Where bars begin; the names stand before it.
const BARS: usize = 260;
/// Of the longest bar: the numbers stand behind it.
const LONGEST: usize = 420;
const BAR: usize = 18;
const ROW: usize = 28;
const HEADING: usize = 44;

const STYLE: &str = "\
    text { font: 14px system-ui, \"Segoe UI\", Helvetica, Arial, sans-serif; fill: #1f2328 }
    .head { font-weight: 600 }
    .name { text-anchor: end }
    .page { fill: #ffffff }
    .bar { fill: #8c959f }
    .ours { fill: #0969da }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3 }
      .page { fill: #0d1117 }
      .bar { fill: #6e7681 }
      .ours { fill: #4493f8 }
    }
";

/// One group of bars.
pub(crate) struct Chart {
    title: String,
    bars: Vec<Bar>,
}

pub(crate) struct Bar {
    pub(crate) name: &'static str,
    pub(crate) ratio: f64,
    /// In another colour.
    pub(crate) is_ours: bool,
}

impl Chart {
    /// A bar without a number is left out.
    pub(crate) fn new(title: String, bars: impl IntoIterator<Item = Bar>) -> Self {
        Self {
            title,
            bars: bars
                .into_iter()
                .filter(|bar| bar.ratio.is_finite())
                .collect(),
        }
    }

    fn height(&self) -> usize {
        HEADING + ROW * self.bars.len()
    }
}

/// The text of an SVG file with these charts, one below the other. Each has a scale of its own.
pub(crate) fn svg(charts: &[Chart]) -> String {
    let height = MARGIN + charts.iter().map(Chart::height).sum::<usize>();
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\">\n  \
         <style>\n{STYLE}  </style>\n  <rect class=\"page\" width=\"{WIDTH}\" height=\"{height}\" rx=\"8\"/>\n"
    );
    let mut top = 0;
    for chart in charts {
        let _ = writeln!(
            text,
            "  <text class=\"head\" x=\"{MARGIN}\" y=\"{}\">{}</text>",
            top + 30,
            chart.title
        );
        let longest = chart
            .bars
            .iter()
            .map(|bar| bar.ratio)
            .fold(f64::MIN_POSITIVE, f64::max);
        for (
            row,
            Bar {
                name,
                ratio,
                is_ours,
            },
        ) in chart.bars.iter().enumerate()
        {
            let (y, width) = (top + HEADING + ROW * row, ratio / longest * LONGEST as f64);
            let class = if *is_ours { "ours" } else { "bar" };
            let (base, before, behind) = (y + 14, BARS - 10, BARS as f64 + width + 8.0);
            let _ = writeln!(
                text,
                "  <text class=\"name\" x=\"{before}\" y=\"{base}\">{name}</text>\n  \
                 <rect class=\"{class}\" x=\"{BARS}\" y=\"{y}\" width=\"{width:.0}\" height=\"{BAR}\" rx=\"2\"/>\n  \
                 <text x=\"{behind:.0}\" y=\"{base}\">{ratio:.2}</text>"
            );
        }
        top += chart.height();
    }
    text + "</svg>\n"
}
