"""The parts of pages. Each module imports NiceGUI, so only ``pages`` and ``serving.server`` import this package.

- ``layout``: header with navigation, theme switch and sign-out; ``section``, ``grid`` and ``note`` for the content of a page.
- ``style.css``: colors, sizes and type, once for light and once for dark.
- ``form``: fields of input. ``alert_list``: alerts.
- ``figures``: a row of large figures.
- ``html_table``: tables of escaped text; ``Markup`` for parts that are HTML already.
- ``chart``, ``chart.js``: charts that append points, follow the theme, and have a table for screen readers.
"""
