// A chart that appends points, follows the theme of the page, and can be read as a table.
import { echarts } from "nicegui-echart";

const UNITS = {
  number: (v) => (Math.abs(v) >= 1e6 ? v.toExponential(2) : (+v.toPrecision(4)).toLocaleString("en-US", { maximumSignificantDigits: 4 })),
  percent: (v) => `${+(100 * v).toPrecision(3)} %`,
  seconds: (v) => {
    if (v === 0) return "0 s";
    if (Math.abs(v) < 1e-3) return `${+(v * 1e6).toPrecision(3)} µs`;
    if (Math.abs(v) < 1) return `${+(v * 1e3).toPrecision(3)} ms`;
    if (Math.abs(v) < 120) return `${+v.toPrecision(3)} s`;
    return Math.abs(v) < 7200 ? `${+(v / 60).toPrecision(3)} min` : `${+(v / 3600).toPrecision(3)} h`;
  },
  bytes: (v) => {
    const sizes = ["B", "kB", "MB", "GB", "TB"];
    let i = 0;
    while (Math.abs(v) >= 1000 && i < 4) [v, i] = [v / 1000, i + 1];
    return `${+v.toPrecision(3)} ${sizes[i]}`;
  },
  rate: (v) => `${UNITS.bytes(v)}/s`,
};
const css = (name) => getComputedStyle(document.body).getPropertyValue(name).trim();
const escaped = (text) => String(text).replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`);
const TABLE_ROWS = 20;

export default {
  template: `<figure style="margin:0;display:flex;flex-direction:column;gap:4px;flex:1">
    <div class="ff-chart" :class="{tall}" role="img" :aria-label="words"><div ref="canvas"></div></div>
    <details class="ff-more" @toggle="open = $event.target.open"><summary>Table</summary>
      <div class="ff-scroll" tabindex="0" role="region" :aria-label="label + ', table'" v-if="open"><table class="ff-table">
        <thead><tr><th scope="col" class="text" v-for="name in tableHead">{{ name }}</th></tr></thead>
        <tbody><tr v-for="row in tableRows"><td class="text" v-for="cell in row">{{ cell }}</td></tr></tbody></table></div>
    </details></figure>`,
  props: { label: String, spec: Object, data: Array, option: Object, table: Object, tall: Boolean },
  data: () => ({ open: false, tick: 0 }),
  computed: {
    words() {
      this.tick;
      const last = (this.spec?.series || []).map((one, i) => {
        const points = this.points?.[i] || [];
        const last = points.length ? points[points.length - 1][1] : null;
        return last === null ? "" : `${one.name} ${this.shown(last)}`;
      });
      return [this.label, ...last.filter(Boolean)].join(", ");
    },
    tableHead() {
      return this.table ? this.table.head : [this.spec.x, ...this.spec.series.map((one) => one.name)];
    },
    tableRows() {
      this.tick;
      if (this.table) return this.table.rows;
      const rows = new Map();
      this.points.forEach((points, i) =>
        points.slice(-TABLE_ROWS).forEach(([x, y]) => {
          if (!rows.has(x)) rows.set(x, new Array(this.points.length).fill(null));
          rows.get(x)[i] = y;
        }),
      );
      return [...rows.entries()]
        .sort((a, b) => b[0] - a[0])
        .slice(0, TABLE_ROWS)
        .map(([x, ys]) => [UNITS[this.spec.xUnit || "number"](x), ...ys.map((y) => (y === null ? "–" : this.shown(y)))]);
    },
  },
  created() {
    this.points = (this.data || []).map((points) => points.slice());
  },
  async mounted() {
    await this.$nextTick();
    if (!this.$refs.canvas) return; // the page has removed it meanwhile
    this.chart = echarts.init(this.$refs.canvas, null, { renderer: "canvas" });
    this.observer = new ResizeObserver(() => this.chart.resize());
    this.observer.observe(this.$refs.canvas);
    this.theme = new MutationObserver(() => this.draw(true));
    this.theme.observe(document.body, { attributes: true, attributeFilter: ["class"] });
    this.draw(true);
  },
  beforeUnmount() {
    this.observer?.disconnect();
    this.theme?.disconnect();
    this.chart?.dispose();
  },
  watch: {
    option() { this.draw(false); },
    spec() { this.draw(true); },
    data() { this.set(this.data); },
  },
  methods: {
    shown(value) { return UNITS[this.spec?.unit || "number"](value); },
    append(rows) {
      rows.forEach((points, i) => this.points[i]?.push(...points));
      this.draw(false);
    },
    set(data) {
      this.points = data.map((points) => points.slice());
      this.draw(false);
    },
    draw(anew) {
      this.tick += 1;
      if (!this.chart) return;
      const option = this.option ? this.themed(this.option) : anew ? this.lines() : null;
      if (option) this.chart.setOption(option, { notMerge: anew });
      if (this.option) return;
      const shown = this.spec.series.filter((_, i) => this.points[i]?.length); // lines without points are not in the legend
      this.chart.setOption({ legend: { data: shown.map((one) => one.name) }, series: this.points.map((data) => ({ data })) });
    },
    // Colors in an option are names of style variables, such as "--c0".
    themed(value) {
      if (typeof value === "string") return value.startsWith("--") ? css(value) : value;
      if (Array.isArray(value)) return value.map((one) => this.themed(one));
      if (value && typeof value === "object")
        return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, this.themed(one)]));
      return value;
    },
    lines() {
      const spec = this.spec, soft = css("--faint"), line = css("--line"), font = getComputedStyle(document.body).fontFamily;
      const axis = { axisLine: { lineStyle: { color: line } }, axisTick: { show: false }, axisLabel: { color: soft, fontSize: 11.5 } };
      const unitX = UNITS[spec.xUnit || "number"];
      return {
        animation: false,
        textStyle: { fontFamily: font, color: css("--ink") },
        grid: { left: 4, right: spec.xUnit ? 32 : 22, top: spec.series.length > 1 ? 30 : 10, bottom: 6, containLabel: true },
        legend: { show: spec.series.length > 1, type: "scroll", left: 0, top: 0, itemWidth: 16, itemHeight: 8, icon: "roundRect",
          textStyle: { color: css("--soft"), fontSize: 12 }, inactiveColor: line, pageIconColor: soft, pageTextStyle: { color: soft } },
        tooltip: { trigger: "axis", confine: true, backgroundColor: css("--paper"), borderColor: line, padding: [7, 11],
          textStyle: { color: css("--ink"), fontSize: 12.5, fontFamily: font }, axisPointer: { lineStyle: { color: soft } },
          formatter: (rows) => `${escaped(spec.x)} ${unitX(rows[0].value[0])}` + rows.filter((r) => r.value[1] !== null)
            .map((r) => `<br>${r.marker}${escaped(r.seriesName)} <b>${this.shown(r.value[1])}</b>`).join("") },
        xAxis: { type: spec.logarithmic ? "log" : "value", min: "dataMin", max: "dataMax", name: "", splitLine: { show: false }, minInterval: spec.xUnit ? 0 : 1, ...axis,
          axisLabel: { ...axis.axisLabel, formatter: unitX, hideOverlap: true, showMinLabel: spec.xUnit ? false : null, showMaxLabel: true } },
        yAxis: { type: "value", scale: spec.zero ? false : true, splitNumber: 4, ...axis, axisLine: { show: false },
          splitLine: { lineStyle: { color: css("--hair") } }, axisLabel: { ...axis.axisLabel, formatter: (v) => this.shown(v) } },
        dataZoom: [{ type: "inside", filterMode: "none", zoomOnMouseWheel: "shift", moveOnMouseWheel: false }],
        series: spec.series.map((one, i) => ({
          type: "line", name: one.name, showSymbol: !!one.symbols, symbol: "circle", symbolSize: 5, sampling: "lttb", large: true,
          itemStyle: { color: css(`--c${one.color ?? i % 8}`), opacity: one.thin ? 0.45 : 1 },
          lineStyle: { width: one.thin ? 1 : 1.8, opacity: one.thin ? 0.45 : 1, type: one.dashed ? "dashed" : "solid" },
          emphasis: { disabled: true }, connectNulls: false, data: [],
        })),
      };
    },
  },
};
