package cgroups

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// settingsV1 converts limits to the files of cgroup v1.
func settingsV1(r *specs.LinuxResources) []setting {
	out := []setting{{controller: "cpu", file: "cpu.shares", value: strconv.FormatUint(*r.CPU.Shares, 10)}}
	if r.CPU.Quota != nil {
		out = append(out,
			setting{controller: "cpu", file: "cpu.cfs_period_us", value: strconv.FormatUint(*r.CPU.Period, 10)},
			setting{controller: "cpu", file: "cpu.cfs_quota_us", value: strconv.FormatInt(*r.CPU.Quota, 10)})
	} else {
		out = append(out, setting{controller: "cpu", file: "cpu.cfs_quota_us", value: "-1", unlimited: true})
	}
	return append(out, sizes(r, "limit_in_bytes", "-1")...)
}

// inheritCPUSet copies the cpuset of the parent: no process can enter a cpuset without CPUs or
// memory nodes.
func inheritCPUSet(above, dir string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		own, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if strings.TrimSpace(string(own)) != "" {
			continue
		}
		from, err := os.ReadFile(filepath.Join(above, name))
		if err != nil {
			return err
		}
		value := strings.TrimSpace(string(from))
		if value == "" {
			return fmt.Errorf("%s: empty; child cgroups cannot contain processes", filepath.Join(above, name))
		}
		if err := put(filepath.Join(dir, name), value); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	return nil
}
