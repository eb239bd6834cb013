package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"

	"berth/internal/apiclient"
	"berth/internal/telemetry"
	"berth/nodeapi/server"
)

// apiServerFuncs contains functions that use the API server. They are nil without one.
type apiServerFuncs struct {
	reviews     server.Reviews
	certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error) // signed by the cluster
}

// apiServerFuncs returns the functions for a node in a cluster.
func (j *cluster) apiServerFuncs() apiServerFuncs {
	funcs := apiServerFuncs{reviews: server.Reviews{
		Token: func(ctx context.Context, q authenticationv1.TokenReviewSpec) (authenticationv1.TokenReviewStatus,
			error) {
			r := &authenticationv1.TokenReview{Spec: q}
			err := j.client.Create(ctx, apiclient.TokenReviews, "", r, r)
			return r.Status, err
		},
		SubjectAccess: func(
			ctx context.Context, q authorizationv1.SubjectAccessReviewSpec,
		) (authorizationv1.SubjectAccessReviewStatus, error) {
			r := &authorizationv1.SubjectAccessReview{Spec: q}
			err := j.client.Create(ctx, apiclient.SubjectAccessReviews, "", r, r)
			return r.Status, err
		},
	}}
	if j.serving != nil {
		funcs.certificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return j.serving.Current() }
	}
	return funcs
}

// hostLogs is the directory served at /logs/.
const hostLogs = "/var/log"

// nodeAPI opens the port of the kubelet HTTP API; a nil listener: disabled.
func (b *berth) nodeAPI(ctx context.Context) (net.Listener, server.Options, error) {
	c := b.config.Server
	var o server.Options
	if !c.Enabled || b.config.Standalone() && c.ClientCAFile == "" { // no client could authenticate
		return nil, o, nil
	}
	o, err := b.nodeAPIOptions()
	if err != nil {
		return nil, o, err
	}
	at := net.JoinHostPort(c.Address.String(), fmt.Sprint(c.Port))
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", at)
	if err != nil {
		return nil, o, fmt.Errorf("kubelet API: %w", err)
	}
	b.log.Info("kubelet API started", "address", ln.Addr().String())
	return ln, o, nil
}

func (b *berth) nodeAPIOptions() (o server.Options, err error) {
	c := b.config.Server
	o = server.Options{
		NodeName: b.config.NodeName, Handlers: b.kubeletHandlers(), Reviews: b.server.reviews, Log: b.log,
		TokenTTL: c.WebhookTTL, AuthorizedTTL: c.AuthorizedTTL, UnauthorizedTTL: c.UnauthorizedTTL,
		MinVersion: c.MinVersion, CipherSuites: c.CipherSuites,
		CurvePreferences:        convertAll(c.CurvePreferences, func(id int32) tls.CurveID { return tls.CurveID(id) }),
		EnableDebuggingHandlers: c.DebuggingHandlers, StreamIdleTimeout: c.StreamIdleTimeout,
		EnableProfiling: c.Profiling, EnableDebugFlags: c.DebugFlags,
		AuthorizationMode: server.ModeFor(c.AlwaysAllow, b.config.Standalone()),
	}
	if !c.Webhook {
		o.Reviews.Token = nil
	}
	if c.ClientCAFile != "" {
		if o.ClientCA, err = server.NewDynamicCA(c.ClientCAFile); err != nil {
			return o, fmt.Errorf("authentication.x509.clientCAFile: %w", err)
		}
	}
	o.Certificate, err = b.servingCertificate()
	return o, err
}

// servingCertificate returns the configured certificate, the one signed by the cluster, or a
// self-signed one.
func (b *berth) servingCertificate() (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	c := b.config.Server
	if c.CertFile != "" {
		pair, err := server.NewDynamicCertificate(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("tlsCertFile: %w", err)
		}
		return pair.Certificate, nil
	}
	if c.ServerTLSBootstrap && b.server.certificate != nil {
		return b.server.certificate, nil
	}
	pair, err := server.SelfSignedCertificate(b.config.CertDir, b.config.NodeName, b.host.ips, time.Now())
	if err != nil {
		return nil, err
	}
	return pair.Certificate, nil
}

func (b *berth) kubeletHandlers() server.Handlers {
	h := server.Handlers{
		Pods:           b.pods,
		RunningPods:    b.runningPods,
		Logs:           b.kubeletLogs,
		Exec:           b.kubeletExec,
		Attach:         b.kubeletAttach,
		CheckReachable: b.reachable,
		DialPort:       b.kubeletDial,
		Stats:          b.nodeStats,
		Why:            b.why, Timeline: b.timeline,
		Metrics: b.metrics.NodeHandler(), Probes: b.metrics.ProbesHandler(),
		Config:     func() any { return b.config.Kubelet },
		Health:     b.health().Live.Handler("healthz"),
		Checkpoint: b.kubeletCheckpoint, LocalVolumes: b.localVolumesHandler(),
		SetVerbosity: func(v int) { b.logLevel.Set(telemetry.Level(v)) },
	}
	if b.config.Server.SystemLogHandler {
		h.SystemLogDir = hostLogs
	}
	if b.config.Server.SystemLogQuery {
		h.Journal = "journalctl"
	}
	return h
}
