package cgroups

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// units is the part of systemd's API that the package uses.
type units interface {
	// start creates a slice, or updates the properties of an existing one.
	start(ctx context.Context, slice string, properties []systemd.Property) error
	// stop stops a slice and everything in it. A missing slice is not an error.
	stop(ctx context.Context, slice string) error
}

// properties converts limits to the properties of a slice. The cgroup files are written, too,
// including limits without a property. The properties prevent systemd from reverting them, except
// for the rounding of a quota.
func properties(v2 bool, r *specs.LinuxResources) []systemd.Property {
	const infinity = uint64(math.MaxUint64)
	out := []systemd.Property{
		property("DefaultDependencies", false),
		property("CPUAccounting", true), property("MemoryAccounting", true), property("TasksAccounting", true),
	}
	quota, tasks, memory := infinity, infinity, infinity
	if r.CPU.Quota != nil {
		// systemd rounds to hundredths of a CPU: round up.
		perSecond := uint64(*r.CPU.Quota) * 1_000_000 / *r.CPU.Period
		quota = (perSecond + 9_999) / 10_000 * 10_000
		out = append(out, property("CPUQuotaPeriodUSec", *r.CPU.Period))
	}
	if r.Pids != nil {
		tasks = uint64(*r.Pids.Limit)
	}
	if r.Memory != nil {
		memory = uint64(*r.Memory.Limit)
	}
	out = append(out, property("CPUQuotaPerSecUSec", quota), property("TasksMax", tasks))
	if v2 {
		for file, name := range map[string]string{memoryMin: "MemoryMin", memoryLow: "MemoryLow",
			memoryHigh: "MemoryHigh"} {
			if n, err := strconv.ParseUint(r.Unified[file], 10, 64); err == nil {
				out = append(out, property(name, n))
			}
		}
		return append(out, property("IOAccounting", true),
			property("CPUWeight", weightOf(*r.CPU.Shares)), property("MemoryMax", memory))
	}
	return append(out, property("BlockIOAccounting", true),
		property("CPUShares", *r.CPU.Shares), property("MemoryLimit", memory))
}

func property(name string, value any) systemd.Property {
	return systemd.Property{Name: name, Value: dbus.MakeVariant(value)}
}

// bus connects to systemd when needed, and again when the connection is lost.
type bus struct {
	mu   sync.Mutex
	conn *systemd.Conn
}

func (b *bus) connect(ctx context.Context) (*systemd.Conn, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conn != nil && b.conn.Connected() {
		return b.conn, nil
	}
	if b.conn != nil {
		b.conn.Close()
		b.conn = nil
	}
	// The connection outlives this call.
	conn, err := systemd.NewSystemdConnectionContext(context.WithoutCancel(ctx))
	if err != nil {
		return nil, fmt.Errorf("connect to systemd: %w", err)
	}
	b.conn = conn
	return conn, nil
}

func (b *bus) start(ctx context.Context, slice string, properties []systemd.Property) error {
	conn, err := b.connect(ctx)
	if err != nil {
		return err
	}
	done := make(chan string, 1)
	_, err = conn.StartTransientUnitContext(
		ctx,
		slice,
		"replace",
		append(properties, systemd.PropDescription("berth pods")),
		done,
	)
	if isError(err, "org.freedesktop.systemd1.UnitExists") {
		changeable := make([]systemd.Property, 0, len(properties))
		for _, p := range properties {
			if p.Name != "DefaultDependencies" { // only for new units
				changeable = append(changeable, p)
			}
		}
		if err := conn.SetUnitPropertiesContext(ctx, slice, true, changeable...); err != nil {
			return fmt.Errorf("set properties of %s: %w", slice, err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("start %s: %w", slice, err)
	}
	return wait(ctx, "start "+slice, done)
}

func (b *bus) stop(ctx context.Context, slice string) error {
	conn, err := b.connect(ctx)
	if err != nil {
		return err
	}
	done := make(chan string, 1)
	_, err = conn.StopUnitContext(ctx, slice, "replace", done)
	if isError(err, "org.freedesktop.systemd1.NoSuchUnit") {
		return nil
	}
	if err != nil {
		return fmt.Errorf("stop %s: %w", slice, err)
	}
	return wait(ctx, "stop "+slice, done)
}

func wait(ctx context.Context, what string, done <-chan string) error {
	select {
	case result := <-done:
		if result != "done" {
			return fmt.Errorf("%s: job result %s", what, result)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", what, ctx.Err())
	}
}

func isError(err error, name string) bool {
	e, ok := errors.AsType[dbus.Error](err)
	return ok && e.Name == name
}
