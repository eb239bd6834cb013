package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"berth/test/hosts"
)

// chartImage is the image of the chart that helm create makes. Its stand-in contains Debian's nginx.
const chartImage = "docker.io/library/nginx:1.16.0"

// installChart creates a chart with Helm, installs it without a change and removes it again. The result is failed
// unless the Deployment of the chart gets a ready pod.
func installChart(ctx context.Context, p *programs, pl *controlPlane, dir string) result {
	began := time.Now()
	out := result{Name: "[helm] the default chart gets ready pods", Status: "passed"}
	if err := chartSteps(ctx, p, pl, dir); err != nil {
		out.Status, out.Failure = "failed", err.Error()
	}
	out.Seconds = time.Since(began).Seconds()
	return out
}

func chartSteps(ctx context.Context, p *programs, pl *controlPlane, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	helm := func(args ...string) error {
		cmd := hosts.HelmCommand(ctx, p.of("helm"), pl.kubeconfig, dir, args...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("helm %s: %w: %s", args[0], err, out)
		}
		return nil
	}
	if err := helm("create", "web"); err != nil {
		return err
	}
	if err := helm("install", "web", "./web", "--wait", "--timeout", "3m"); err != nil {
		return err
	}
	ready, err := pl.kubectlOutput(ctx, "", "get", "deployment", "web", "-o", "jsonpath={.status.readyReplicas}")
	if err != nil {
		return err
	}
	if ready != "1" {
		return fmt.Errorf("the Deployment has %q ready pods, want 1", ready)
	}
	if err := helm("upgrade", "web", "./web", "--set", "replicaCount=2", "--wait", "--timeout", "3m"); err != nil {
		return err
	}
	return helm("uninstall", "web", "--wait", "--timeout", "3m")
}
