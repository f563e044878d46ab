"""One self-contained HTML page about runs: curves, intervals, statistics, pictures, videos, configurations.

Everything that comes from a run folder is text to us: escaped in HTML, in the JSON of the charts and in the words Plotly draws. The page
fetches nothing, and its content security policy lets only our own two scripts run.
"""

from aimrl.report.charts import across_chart, aggregate_chart, metric_charts, score_words, success_chart, to_goal_chart
from aimrl.report.commands import MAX_CONFIG, command, grid_command, run_list
from aimrl.report.content import MAX_FILE, MAX_MEDIA, GridRun, Medium, Report, Success, gather
from aimrl.report.layout import page, policy, recent_speed, render, write
from aimrl.report.markup import Chart, curve_data, esc, interval, legend, numbers, script_json, section, swatch, table, tag
from aimrl.report.media import grids, hero, hero_medium, pictures
from aimrl.report.tables import improvement, overview, statistics

__all__ = [
    "MAX_CONFIG",
    "MAX_FILE",
    "MAX_MEDIA",
    "Chart",
    "GridRun",
    "Medium",
    "Report",
    "Success",
    "across_chart",
    "aggregate_chart",
    "command",
    "curve_data",
    "esc",
    "gather",
    "grid_command",
    "grids",
    "hero",
    "hero_medium",
    "improvement",
    "interval",
    "legend",
    "metric_charts",
    "numbers",
    "overview",
    "page",
    "pictures",
    "policy",
    "recent_speed",
    "render",
    "run_list",
    "score_words",
    "script_json",
    "section",
    "statistics",
    "success_chart",
    "swatch",
    "table",
    "tag",
    "to_goal_chart",
    "write",
]
