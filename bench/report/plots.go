package report

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/warmwatch/warmwatch/bench/result"
	"github.com/warmwatch/warmwatch/test/e2e/agent"
	"github.com/warmwatch/warmwatch/test/e2e/display"
)

// Plot is a picture, and what it shows.
type Plot struct{ File, Text, Content string }

// Plots draws all pictures that f has figures for, in the order of the document.
func Plots(f *result.File) (drawn []Plot, err error) {
	plot.DefaultFont.Variant = "Sans"
	for _, p := range []struct {
		file, text string
		draw       func(*result.File) (string, error) // Empty without figures.
	}{
		{"start-time.svg", "Time from the start of an agent until it is of use, over the number of Pods", startTimePlot.draw},
		{"restart-bytes.svg", "Bytes that an agent receives when it starts, over the number of Pods", restartBytesPlot.draw},
		{"memory.svg", "Anonymous memory of an agent, over the number of Pods", memoryPlot.draw},
		{"fleet.svg", "A fleet that restarts at once, beside the API server", fleetPlot},
	} {
		content, err := p.draw(f)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.file, err)
		}
		if content != "" {
			drawn = append(drawn, Plot{p.file, p.text, content})
		}
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
	{"warmwatch warm, HasSynced", warmOther, CaughtUpStart, agent.Warmwatch, result.HasSynced},
	{"warmwatch warm, served from disk", warmMain, WarmStart, agent.Warmwatch, result.HasSynced},
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
func (o overSizes) draw(f *result.File) (string, error) {
	p := newPlot(o.title, "Pods", o.axis)
	legend := plot.NewLegend()
	legend.Top, legend.Left = true, true
	legend.ThumbnailWidth, legend.Padding = vg.Points(32), vg.Points(4)
	var ticks sizeTicks
	floor, ceiling := math.Inf(1), 0.0 // Whole decades around all values.
	lines := make([]plotter.XYs, len(o.lines))
	for i, of := range o.lines {
		for _, r := range f.Rows {
			if r.Scenario == of.scenario && r.Kind == Plain && r.Impl == of.impl && r.Metric == of.metric {
				y := max(r.Median*o.scale, 1e-3)
				lines[i] = append(lines[i], plotter.XY{X: float64(r.Objects), Y: y})
				ticks = append(ticks, float64(r.Objects))
				decade := math.Floor(math.Log10(y))
				floor, ceiling = min(floor, math.Pow(10, decade)), max(ceiling, math.Pow(10, decade+1))
			}
		}
	}
	if len(ticks) == 0 {
		return "", nil
	}
	for i, of := range o.lines {
		if len(lines[i]) == 0 {
			continue
		}
		path, points, err := plotter.NewLinePoints(lines[i])
		if err != nil {
			return "", err
		}
		path.Width, path.Dashes = vg.Points(1), of.style.dashes
		points.Shape, points.Radius = of.style.shape, vg.Points(3.5)
		p.Add(path, points)
		legend.Add(of.name, path, points)
	}
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, ticks
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, decadeTicks{}
	p.Y.Min, p.Y.Max = floor, ceiling
	return render(25*vg.Centimeter, 11*vg.Centimeter, [][]*plot.Plot{{p}}, &legend)
}

func newPlot(title, x, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Title.Padding = vg.Points(6)
	p.BackgroundColor = color.White
	return p
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
type sizeTicks []float64

// Ticks implements plot.Ticker.
func (t sizeTicks) Ticks(_, _ float64) (ticks []plot.Tick) {
	for _, size := range slices.Compact(slices.Sorted(slices.Values(t))) {
		ticks = append(ticks, plot.Tick{Value: size, Label: display.Thousands(int(size))})
	}
	return ticks
}

func fleetPlot(f *result.File) (string, error) {
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
			at := slices.IndexFunc(f.Rows, func(r result.Row) bool {
				return r.Scenario == bar.scenario && r.Impl == bar.impl && r.Metric == m.metric
			})
			if at < 0 {
				return "", nil
			}
			row := f.Rows[at]
			title = fmt.Sprintf("%s %s", display.Thousands(row.Objects), row.Kind)
			bars, err := plotter.NewBarChart(plotter.Values{row.Median * m.scale}, vg.Points(36))
			if err != nil {
				return "", err
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

// legendWidth is kept free at the right for the legend.
const legendWidth = 9 * vg.Centimeter

// render draws plots side by side and below each other, and at the right a legend
// if there is one.
func render(width, height vg.Length, plots [][]*plot.Plot, legend *plot.Legend) (string, error) {
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
	return b.String(), err
}
