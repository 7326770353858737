package report

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/warmwatch/warmwatch/bench/result"
	"github.com/warmwatch/warmwatch/test/e2e/agent"
	"github.com/warmwatch/warmwatch/test/e2e/display"
)

// Plot is a file with a picture, and what it shows.
type Plot struct{ File, Text string }

// WritePlots draws all plots that f has figures for into dir, and returns them in the
// order of the document.
func WritePlots(f *result.File, dir string) (drawn []Plot, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	plot.DefaultFont.Variant = "Sans"
	for _, p := range []struct {
		Plot
		draw func(*result.File) ([]byte, error) // nil without figures.
	}{
		{Plot{"start-time.svg", "Time from the start of an agent until it is of use, over the number of Pods"}, startTimePlot.draw},
		{Plot{"restart-bytes.svg", "Bytes that an agent receives when it starts, over the number of Pods"}, restartBytesPlot.draw},
		{Plot{"memory.svg", "Anonymous memory of an agent, over the number of Pods"}, memoryPlot.draw},
		{Plot{"fleet.svg", "A fleet that restarts at once, beside the API server"}, fleetPlot},
		{Plot{"latency.svg", "From the decoded watch event to the handler"}, latencyPlot},
	} {
		content, err := p.draw(f)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.File, err)
		}
		if content == nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, p.File), content, 0o644); err != nil {
			return nil, err
		}
		drawn = append(drawn, p.Plot)
	}
	return drawn, nil
}

// style makes a line or a bar known without colour.
type style struct {
	shape  draw.GlyphDrawer
	dashes []vg.Length
	fill   color.Color
}

// Dashed lines and open shapes are client-go's.
var (
	stockMain  = style{shape: draw.RingGlyph{}, dashes: []vg.Length{vg.Points(6), vg.Points(3)}, fill: color.White}
	stockOther = style{shape: draw.SquareGlyph{}, dashes: []vg.Length{vg.Points(2), vg.Points(3)}, fill: color.White}
	warmMain   = style{shape: draw.CircleGlyph{}, fill: color.Black}
	warmOther  = style{shape: draw.BoxGlyph{}, fill: color.Gray{Y: 120}}
	warmThird  = style{shape: draw.PyramidGlyph{}, fill: color.Gray{Y: 190}}
	warmFourth = style{shape: draw.CrossGlyph{}, fill: color.Gray{Y: 190}}
)

// line is one line of a plot.
type line struct {
	name  string
	style style
	xys   plotter.XYs
}

// overSizes is a plot of figures of Pods over their number.
type overSizes struct {
	title, axis string
	scale       float64
	lines       []lineOf
}

// lineOf is a line of figures.
type lineOf struct {
	name                   string
	style                  style
	scenario, impl, metric string
}

var startTimePlot = overSizes{title: "Start of an agent", axis: "time (ms)", scale: 1, lines: []lineOf{
	{"client-go, all OnAdd", stockMain, ColdStart, agent.ClientGo, result.AllAdded},
	{"client-go, HasSynced", stockOther, ColdStart, agent.ClientGo, result.HasSynced},
	{"warmwatch cold, all OnAdd", warmFourth, ColdStart, agent.Warmwatch, result.AllAdded},
	{"warmwatch after 410, caught up", warmThird, GoneStart, agent.Warmwatch, result.CaughtUp},
	{"warmwatch warm, all OnAdd", warmOther, WarmStart, agent.Warmwatch, result.AllAdded},
	{"warmwatch warm, HasSynced", warmMain, WarmStart, agent.Warmwatch, result.HasSynced},
}}

var restartBytesPlot = overSizes{title: "Bytes on a restart", axis: "received (kB)", scale: 1e-3, lines: []lineOf{
	{"client-go", stockMain, WarmStart, agent.ClientGo, result.Received},
	{"warmwatch, after 410", warmThird, GoneStart, agent.Warmwatch, result.Received},
	{"warmwatch, 1 % changed", warmOther, ChangedStart, agent.Warmwatch, result.Received},
	{"warmwatch, nothing changed", warmMain, WarmStart, agent.Warmwatch, result.Received},
}}

var memoryPlot = overSizes{title: "Anonymous memory of an agent", axis: "memory (MB)", scale: 1e-6, lines: []lineOf{
	{"client-go, peak", stockMain, WarmStart, agent.ClientGo, result.PeakAnon},
	{"client-go, steady", stockOther, WarmStart, agent.ClientGo, result.SteadyAnon},
	{"warmwatch cold, peak", warmThird, ColdStart, agent.Warmwatch, result.PeakAnon},
	{"warmwatch warm, peak", warmMain, WarmStart, agent.Warmwatch, result.PeakAnon},
	{"warmwatch warm, steady", warmOther, WarmStart, agent.Warmwatch, result.SteadyAnon},
}}

// draw draws lines over two logarithmic axes. What is not above zero has no place
// there and stands at the lower end.
func (o overSizes) draw(f *result.File) ([]byte, error) {
	var lines []line
	for _, of := range o.lines {
		l := line{name: of.name, style: of.style}
		for _, r := range f.Rows {
			if r.Scenario == of.scenario && r.Kind == "Pods" && r.Impl == of.impl && r.Metric == of.metric {
				l.xys = append(l.xys, plotter.XY{X: float64(r.Objects), Y: r.Median * o.scale})
			}
		}
		slices.SortFunc(l.xys, func(a, b plotter.XY) int { return int(a.X - b.X) })
		lines = append(lines, l)
	}
	if count(lines) == 0 {
		return nil, nil
	}
	p := newPlot(o.title, "Pods", o.axis)
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, sizeTicks{lines}
	legend, err := addLogLines(p, lines)
	if err != nil {
		return nil, err
	}
	return render(25*vg.Centimeter, 11*vg.Centimeter, [][]*plot.Plot{{p}}, legend)
}

func newPlot(title, x, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Title.Padding = vg.Points(6)
	p.BackgroundColor = color.White
	return p
}

// count is how many lines have points.
func count(lines []line) (n int) {
	for _, l := range lines {
		if len(l.xys) > 0 {
			n++
		}
	}
	return n
}

// addLogLines gives the y axis whole decades around all values. At least one line
// has points.
func addLogLines(p *plot.Plot, lines []line) (*plot.Legend, error) {
	lowest, highest := math.Inf(1), 0.0
	for _, l := range lines {
		for _, xy := range l.xys {
			if xy.Y > 0 {
				lowest, highest = min(lowest, xy.Y), max(highest, xy.Y)
			}
		}
	}
	if highest == 0 {
		lowest, highest = 1, 1
	}
	floor, ceiling := math.Pow(10, math.Floor(math.Log10(lowest))), math.Pow(10, math.Floor(math.Log10(highest))+1)
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, decadeTicks{}
	legend := plot.NewLegend()
	legend.Top, legend.Left = true, true
	legend.ThumbnailWidth, legend.Padding = vg.Points(32), vg.Points(4)
	for _, l := range lines {
		if len(l.xys) == 0 {
			continue
		}
		xys := slices.Clone(l.xys)
		for i := range xys {
			xys[i].Y = max(xys[i].Y, floor)
		}
		path, points, err := plotter.NewLinePoints(xys)
		if err != nil {
			return nil, err
		}
		path.Width, path.Dashes = vg.Points(1), l.style.dashes
		points.Shape, points.Radius = l.style.shape, vg.Points(3.5)
		p.Add(path, points)
		legend.Add(l.name, path, points)
	}
	p.Y.Min, p.Y.Max = floor, ceiling
	return &legend, nil
}

// decadeTicks are plot.LogTicks whose labels are not in scientific notation.
type decadeTicks struct{}

// Ticks implements plot.Ticker.
func (decadeTicks) Ticks(lowest, highest float64) []plot.Tick {
	ticks := plot.LogTicks{}.Ticks(lowest, highest)
	for i := range ticks {
		if ticks[i].Label != "" {
			ticks[i].Label = display.Value("1", ticks[i].Value)
		}
	}
	return ticks
}

// sizeTicks are the sizes that were measured.
type sizeTicks struct{ lines []line }

// Ticks implements plot.Ticker.
func (t sizeTicks) Ticks(_, _ float64) []plot.Tick {
	var ticks []plot.Tick
	for _, l := range t.lines {
		for _, xy := range l.xys {
			if !slices.ContainsFunc(ticks, func(k plot.Tick) bool { return k.Value == xy.X }) {
				ticks = append(ticks, plot.Tick{Value: xy.X, Label: display.Thousands(int(xy.X))})
			}
		}
	}
	return ticks
}

func fleetPlot(f *result.File) ([]byte, error) {
	var panels []*plot.Plot
	title := ""
	for _, m := range []struct {
		metric, name, axis string
		scale              float64
	}{
		{result.ServerCPU, "API server, processor time", "s", 1},
		{result.Received, "bytes received by all agents", "MB", 1e-6},
		{result.ServerPeak, "API server, peak memory", "MB", 1e-6},
		{result.LastCaughtUp, "until the last agent has caught up", "s", 1e-3},
	} {
		p := newPlot(m.name, "", m.axis)
		p.Title.TextStyle.Font.Size = vg.Points(10)
		p.Y.Min = 0
		var names []string
		for i, bar := range []struct {
			name, scenario, impl string
			style                style
		}{
			{"client-go", FleetKept, agent.ClientGo, stockMain},
			{"warmwatch\nafter 410", FleetGone, agent.Warmwatch, warmThird},
			{"warmwatch\nhistory kept", FleetKept, agent.Warmwatch, warmMain},
		} {
			row, ok := findAnySize(f, bar.scenario, bar.impl, m.metric)
			if !ok {
				return nil, nil
			}
			title = fmt.Sprintf("%s %s", display.Thousands(row.Objects), row.Kind)
			bars, err := plotter.NewBarChart(plotter.Values{row.Median * m.scale}, vg.Points(36))
			if err != nil {
				return nil, err
			}
			bars.XMin, bars.Color = float64(i), bar.style.fill
			p.Add(bars)
			names = append(names, bar.name)
		}
		p.NominalX(names...)
		panels = append(panels, p)
	}
	panels[0].Title.Text = title + "\n" + panels[0].Title.Text
	return render(20*vg.Centimeter, 16*vg.Centimeter, [][]*plot.Plot{panels[:2], panels[2:]}, nil)
}

// findAnySize finds the row with the most objects.
func findAnySize(f *result.File, scenario, impl, metric string) (best result.Row, ok bool) {
	for _, r := range f.Rows {
		if r.Scenario == scenario && r.Impl == impl && r.Metric == metric && r.Objects >= best.Objects {
			best, ok = r, true
		}
	}
	return best, ok
}

func latencyPlot(f *result.File) ([]byte, error) {
	var panels []*plot.Plot
	var legend *plot.Legend
	most := 0
	for _, from := range []struct {
		rate int
		name func(perSecond int, durable bool) string
	}{{100, Updates}, {1000, Updates}, {1000, UpdatesBeside}, {5000, UpdatesFromMemory}} { // A server on few processors does not reach 5,000.
		name := from.name(from.rate, false)
		lines := []line{
			quantiles(f, "client-go", stockMain, name, agent.ClientGo),
			quantiles(f, "warmwatch", warmMain, name, agent.Warmwatch),
			quantiles(f, "warmwatch, durable handler", warmOther, from.name(from.rate, true), agent.Warmwatch),
		}
		if count(lines) == 0 {
			continue
		}
		if r, ok := findAnySize(f, name, agent.Warmwatch, result.AchievedRate); ok && r.Median < 0.95*float64(from.rate) {
			name += fmt.Sprintf("\n(the server took %s)", display.Value("1", r.Median))
		}
		p := newPlot(strings.Replace(name, ", ", ",\n", 1), "percentile", "event to handler (ms)")
		p.Title.TextStyle.Font.Size = vg.Points(10)
		all, err := addLogLines(p, lines)
		if err != nil {
			return nil, err
		}
		if n := count(lines); n > most { // Of the panel with the most.
			legend, most = all, n
		}
		p.NominalX("p50", "p99", "p99.9")
		panels = append(panels, p)
	}
	if panels == nil {
		return nil, nil
	}
	// The same scale everywhere.
	for _, p := range panels {
		for _, q := range panels {
			p.Y.Min, p.Y.Max = min(p.Y.Min, q.Y.Min), max(p.Y.Max, q.Y.Max)
		}
	}
	return render(37*vg.Centimeter, 10*vg.Centimeter, [][]*plot.Plot{panels}, legend)
}

func quantiles(f *result.File, name string, s style, scenario, impl string) line {
	l := line{name: name, style: s}
	for i, metric := range []string{result.EventP50, result.EventP99, result.EventP999} {
		if r, ok := findAnySize(f, scenario, impl, metric); ok {
			l.xys = append(l.xys, plotter.XY{X: float64(i), Y: r.Median})
		}
	}
	return l
}

// legendWidth is kept free at the right for the legend.
const legendWidth = 9 * vg.Centimeter

// render draws plots side by side and below each other, and at the right a legend
// if there is one.
func render(width, height vg.Length, plots [][]*plot.Plot, legend *plot.Legend) ([]byte, error) {
	canvas := vgsvg.New(width, height)
	whole := draw.New(canvas)
	whole.FillPolygon(color.White, []vg.Point{{}, {X: width}, {X: width, Y: height}, {Y: height}})
	area := whole
	if legend != nil {
		area = draw.Crop(whole, 0, -legendWidth, 0, 0)
		legend.Draw(draw.Crop(whole, width-legendWidth, 0, 0, -vg.Points(30)))
	}
	tiles := draw.Tiles{
		Rows: len(plots), Cols: len(plots[0]),
		PadX: vg.Points(12), PadY: vg.Points(12),
		PadTop: vg.Points(8), PadBottom: vg.Points(8), PadLeft: vg.Points(8), PadRight: vg.Points(12),
	}
	for y, row := range plot.Align(plots, tiles, area) {
		for x, tile := range row {
			plots[y][x].Draw(tile)
		}
	}
	var b bytes.Buffer
	_, err := canvas.WriteTo(&b)
	return b.Bytes(), err
}
