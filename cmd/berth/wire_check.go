package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/pflag"

	"berth/internal/cis"
	"berth/internal/nodeconfig"
	"berth/node/check"
	nodecis "berth/node/cis"
	"berth/nodeapi"
	"berth/systemd/install"
)

// check checks whether this node can run pods.
func (b *berth) check(ctx context.Context) (nodeapi.CheckReport, error) {
	r := check.Node{
		Config:  b.config,
		Runtime: b.runtime.client,
		Network: b.host.network,
		Cgroups: b.host.cgroups,
		Owns:    b.host.Owns,
	}.Report(
		ctx,
	)
	var err error
	if bad, why := b.store.Degraded(); bad {
		err = errors.New(why)
	}
	add := check.Adder(&r)
	add("local store", false, err, b.config.StateDir, check.StoreRemedy)
	if v := b.pressure.Latest(); v != nil {
		check.Pressure(add, b.pressure.Config, v.Reading, v.Evaluation)
	}
	check.Devices(add, b.devices.RegistrationError(), b.devices.Stats())
	if j := b.cluster; j != nil {
		(&check.Server{Config: b.config, Identity: j.identity, Serving: j.serving, Now: time.Now()}).Check(ctx, add)
	}
	return r, nil
}

// checkCIS checks the node against the CIS Kubernetes Benchmark.
func checkCIS(config *nodeconfig.Config) cis.Report {
	return nodecis.Check(nodecis.Read(config, install.UnitFiles("berth")))
}

// localCIS is checkCIS without an agent. Without --config, it uses the file of the service if it exists.
func localCIS(flags *nodeconfig.Flags) (cis.Report, error) {
	if flags.Config == "" && install.Exists(configFile) {
		flags.Config = configFile
	}
	config, _, err := nodeconfig.Load(flags)
	if err != nil {
		return cis.Report{}, err
	}
	return checkCIS(config), nil
}

// localFlags returns the flags of `berth run` that configure the checks, without the socket flag,
// which all commands have.
func localFlags(flags *nodeconfig.Flags) *pflag.FlagSet {
	all := pflag.NewFlagSet("run", pflag.ContinueOnError)
	flags.AddTo(all)
	out := pflag.NewFlagSet("check", pflag.ContinueOnError)
	all.VisitAll(func(f *pflag.Flag) {
		if f.Name != "socket" {
			out.AddFlag(f)
		}
	})
	return out
}
