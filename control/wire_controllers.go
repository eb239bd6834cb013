package control

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/record"

	"berth/control/controllers"
	"berth/control/scheduler"
	"berth/control/tokens"
)

// schedulerName is the name by which the scheduler is turned off.
const schedulerName = "scheduler"

// schedulerAndControllers are the scheduler and the controllers, each under the name that it
// has with kube-controller-manager.
func (a *Assembly) schedulerAndControllers() []Controller {
	out := []Controller{{Name: schedulerName, LeaderElected: true, Run: a.runScheduler}}
	for _, name := range controllers.Names() {
		out = append(out, Controller{Name: name, LeaderElected: true, Run: func(ctx context.Context) error { return a.runController(ctx, name) }})
	}
	return out
}

// runScheduler runs the scheduler.
func (a *Assembly) runScheduler(ctx context.Context) error {
	events, stop := a.newEventRecorder(ctx, scheduler.DefaultName)
	defer stop()
	s, err := scheduler.New(scheduler.Config{
		Client: a.Client, Informers: a.Informers, Events: events, Log: a.Log.With("part", schedulerName),
	})
	if err != nil {
		return err
	}
	a.startInformers()
	s.Run(ctx)
	return nil
}

// runController runs one controller.
func (a *Assembly) runController(ctx context.Context, name string) error {
	objects, err := metadata.NewForConfig(a.Loopback)
	if err != nil {
		return fmt.Errorf("client for metadata: %w", err)
	}
	source := name
	switch name { // the names that users know from events
	case controllers.NodeLifecycle:
		source = "node-controller"
	case controllers.ReplicationControllers:
		source = "replication-controller"
	}
	events, stop := a.newEventRecorder(ctx, source)
	defer stop()
	return controllers.Run(ctx, name, controllers.Config{
		Client: a.Client, Metadata: objects, Informers: a.Informers, StartInformers: a.startInformers, Events: events, Log: a.Log,
		ClusterCIDRs: a.ClusterCIDRs, ClientCA: a.Authority, ServingCA: a.NodeServingAuthority, CABundle: a.Authority.PEM(), NodeMonitorGracePeriod: a.NodeMonitorGracePeriod,
		SigningDuration: a.ClusterSigningDuration,
		TokenSigner: &tokens.SecretTokenSigner{
			Signer: &tokens.Signer{Issuer: a.ServiceAccountIssuer, Keys: a.access.keys}, Audiences: a.access.audiences, MaxTTL: a.MaxTokenExpiration,
		},
	})
}

// startInformers starts those that parts have come to need; they live as long as
// the server.
func (a *Assembly) startInformers() { a.Informers.Start(a.lifetime.Done()) }

// newEventRecorder is what a part records events with; stop ends it.
func (a *Assembly) newEventRecorder(ctx context.Context, source string) (record.EventRecorder, func()) {
	b := record.NewBroadcaster(record.WithContext(ctx))
	b.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: a.Client.CoreV1().Events("")})
	return b.NewRecorder(clientscheme.Scheme, corev1.EventSource{Component: source}), b.Shutdown
}
