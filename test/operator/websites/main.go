// Command websites is an operator with the shape of real ones, built with controller-runtime. It makes a Deployment of
// each Website. Two replicas elect a leader, both serve a defaulting and a validating webhook with a certificate that
// the first replica has created.
//
// Version 1 knows the version v1alpha1 of the kind. Version 2 stores v1, and converts between the two.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	appsv1 "k8s.io/api/apps/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
)

// firstVersion is the version of the operator that knows v1alpha1 only.
const firstVersion = "1"

func main() {
	version := flag.String("version", firstVersion, "version of the operator, 1 or 2")
	service := flag.String("service", "websites", "name of the Service of the webhooks")
	image := flag.String("image", "", "image of the Deployments")
	flag.Parse()
	ctrl.SetLogger(klog.Background())
	if err := run(ctrl.SetupSignalHandler(), *version, *service, *image); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, version, service, image string) error {
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	if err := clientscheme.AddToScheme(scheme); err != nil {
		return err
	}
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		return err
	}
	addTypes(scheme, version)
	uncached, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "certificate-")
	if err != nil {
		return err
	}
	i := installation{client: uncached, namespace: os.Getenv("POD_NAMESPACE"), service: service}
	if err := i.prepareWebhooks(ctx, dir, version != firstVersion); err != nil {
		return err
	}
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: scheme, Metrics: metricsserver.Options{BindAddress: ":8080"}, HealthProbeBindAddress: ":8081",
		WebhookServer:  webhook.NewServer(webhook.Options{Port: 9443, CertDir: dir}),
		LeaderElection: true, LeaderElectionID: service, LeaderElectionReleaseOnCancel: true,
	})
	if err != nil {
		return err
	}
	if version == firstVersion {
		err = setUp(manager, &WebsiteV1alpha1{}, version, image)
	} else {
		err = setUp(manager, &WebsiteV1{}, version, image)
	}
	if err != nil {
		return err
	}
	if err := manager.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	if err := manager.AddReadyzCheck("webhooks", manager.GetWebhookServer().StartedChecker()); err != nil {
		return err
	}
	return manager.Start(ctx)
}

// setUp adds the controller and the webhooks for a version of the kind.
func setUp[T website](manager ctrl.Manager, kind T, version, image string) error {
	if err := ctrl.NewWebhookManagedBy(manager, kind).WithDefaulter(webhooks[T]{}).WithValidator(webhooks[T]{}).
		Complete(); err != nil {
		return err
	}
	r := &reconciler{Client: manager.GetClient(), version: version, image: image, newWebsite: func() website {
		w, _ := kind.DeepCopyObject().(website) // T is a website
		return w
	}}
	return ctrl.NewControllerManagedBy(manager).For(kind).Owns(&appsv1.Deployment{}).Complete(r)
}
