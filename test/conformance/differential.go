package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"

	"berth/test/conformance/differential"
)

// parallelScripts is the number of scripts that are played at once: they mostly wait.
const parallelScripts = 24

// compareControllers plays scripts to the controllers of berth-control and to those of Kubernetes, both on
// berth-control as the API server. It returns an error if objects differ.
func compareControllers(ctx context.Context, first, count uint64, logs string) (err error) {
	logStep("building (the components of Kubernetes take a quarter of an hour the first time)")
	p, err := build(ctx)
	if err != nil {
		return err
	}
	var both [2]*controlPlane
	for i, name := range []string{"mixed", "control"} {
		dir := filepath.Join(logs, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		logStep("starting the control plane: " + name)
		both[i], err = planes[name](ctx, p, onMachine, dir)
		defer func() { err = errors.Join(err, both[i].stop()) }()
		if err != nil {
			return err
		}
	}
	a, err := clientcmd.BuildConfigFromFlags("", both[0].kubeconfig)
	if err != nil {
		return err
	}
	b, err := clientcmd.BuildConfigFromFlags("", both[1].kubeconfig)
	if err != nil {
		return err
	}
	logStep(fmt.Sprintf("playing %d scripts (- kube-controller-manager, + berth-control)", count))
	s, err := differential.Run(ctx, a, b, differential.Options{First: first, Count: count,
		Parallel: parallelScripts, Report: os.Stdout})
	if err != nil {
		return err
	}
	fmt.Printf("%d of %d scripts without a difference (%d edits, %d objects); logs: %s\n",
		count-uint64(s.Different), count, s.Edits, s.Objects, logs)
	for _, late := range s.Late {
		fmt.Printf("kube-controller-manager needed a change of an annotation after %s\n", late)
	}
	if s.Different > 0 {
		return errors.New("the controllers differ")
	}
	return nil
}
