package check

import (
	"errors"
	"strings"
	"testing"

	"berth/node/devices"
	"berth/node/pressure"
	"berth/nodeapi"
)

func TestCheckReportsDevices(t *testing.T) {
	t.Parallel()
	var r nodeapi.CheckReport
	Devices(Adder(&r), errors.New("no socket"), []devices.ResourceStats{
		{Resource: "a", Connected: true, Listed: 2, Healthy: 2, Allocated: 1},
		{Resource: "b", Connected: true, Listed: 2, Healthy: 1},
		{Resource: "c", Listed: 2},
	})
	want := []string{
		"no socket", "2 devices, 2 healthy, 1 allocated", "1 of 2 devices are unhealthy",
		"device plugin is not running",
	}
	if len(r.Items) != len(want) {
		t.Fatalf("got %+v", r.Items)
	}
	for i, it := range r.Items {
		if it.Detail != want[i] || it.OK != (i == 1) || it.Essential {
			t.Errorf("got %+v, want %s", it, want[i])
		}
	}
}

func TestCheckReportsPressure(t *testing.T) {
	t.Parallel()
	c := pressure.Config{Thresholds: []pressure.Threshold{
		{Signal: pressure.MemoryAvailable, Hard: true, Quantity: 100},
		{Signal: pressure.NodefsAvailable, Hard: true, Quantity: 100},
	}}
	reading := pressure.Reading{Levels: map[pressure.Signal]pressure.Level{
		pressure.MemoryAvailable: {Available: 200, Capacity: 400},
		pressure.NodefsAvailable: {Available: 50, Capacity: 400},
	}}
	_, v := c.Evaluate(pressure.State{}, reading)
	var r nodeapi.CheckReport
	Pressure(Adder(&r), c, reading, v)
	if len(r.Items) != 3 || !r.Items[0].OK || r.Items[1].OK || r.Items[1].Remedy == "" || !r.Items[2].OK ||
		!strings.Contains(r.Items[0].Detail, "200") || !strings.Contains(r.Items[1].Detail, "50") {
		t.Errorf("got %+v", r.Items)
	}
}
