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

// schedulerPart is the name by which the scheduler is turned off.
const schedulerPart = "scheduler"

// workParts are the scheduler and the controllers, each under the name that it
// has with kube-controller-manager.
func (a *Assembly) workParts() []Part {
	out := []Part{{Name: schedulerPart, Alone: true, Run: a.schedule}}
	for _, name := range controllers.Names() {
		out = append(out, Part{Name: name, Alone: true, Run: func(ctx context.Context) error { return a.control(ctx, name) }})
	}
	return out
}

// schedule runs the scheduler.
func (a *Assembly) schedule(ctx context.Context) error {
	events, stop := a.events(ctx, scheduler.DefaultName)
	defer stop()
	s, err := scheduler.New(scheduler.Config{
		Client: a.Client, Informers: a.Informers, Events: events, Log: a.Log.With("part", schedulerPart),
	})
	if err != nil {
		return err
	}
	a.startInformers()
	s.Run(ctx)
	return nil
}

// control runs one controller.
func (a *Assembly) control(ctx context.Context, name string) error {
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
	events, stop := a.events(ctx, source)
	defer stop()
	return controllers.Run(ctx, name, controllers.Config{
		Client: a.Client, Metadata: objects, Informers: a.Informers, StartInformers: a.startInformers, Events: events, Log: a.Log,
		ClusterCIDRs: a.PodRanges, ClientCA: a.Authority, ServingCA: a.NodeAuthority, CABundle: a.Authority.PEM(), NodeMonitorGracePeriod: a.NodeGrace,
		SigningDuration: a.NodeCertificates,
		TokenSigner: &tokens.SecretTokenSigner{
			Signer: &tokens.Signer{Issuer: a.Issuer, Keys: a.access.keys}, Audiences: a.access.audiences, MaxTTL: a.LongestToken,
		},
	})
}

// startInformers starts those that parts have come to need; they live as long as
// the server.
func (a *Assembly) startInformers() { a.Informers.Start(a.life.Done()) }

// events is what a part records events with; stop ends it.
func (a *Assembly) events(ctx context.Context, source string) (record.EventRecorder, func()) {
	b := record.NewBroadcaster(record.WithContext(ctx))
	b.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: a.Client.CoreV1().Events("")})
	return b.NewRecorder(clientscheme.Scheme, corev1.EventSource{Component: source}), b.Shutdown
}
