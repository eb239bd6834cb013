// Package plugins registers the plugins that announce themselves with a socket in the directory
// plugins_registry: CSI drivers and device plugins. It is the plugin watcher of the kubelet.
//
//	socket appears ──► GetInfo ──► handler.Register ──► NotifyRegistrationStatus
//	socket disappears or is replaced ──► handler.Deregister
//
// A registration that fails is repeated with back-off while the socket exists. Each registration has
// a goroutine of its own and a deadline, so a plugin that does not respond delays no other plugin.
// The directory is watched with inotify, and read again once a minute. decide, which is pure, selects
// what happens next.
package plugins
