// Jaeger's own receiver of OTLP over HTTP, memory store and query service in one process: what its all-in-one does, without the rest of
// it. Built inside Jaeger's module, since most of these are internal there.
//
// Arguments: the address for OTLP, the address for queries.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/config/confighttp"
	"go.opentelemetry.io/collector/config/confignet"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"

	"github.com/jaegertracing/jaeger/cmd/query/app"
	"github.com/jaegertracing/jaeger/cmd/query/app/querysvc"
	v2querysvc "github.com/jaegertracing/jaeger/cmd/query/app/querysvc/v2/querysvc"
	"github.com/jaegertracing/jaeger/internal/jptrace/sanitizer"
	"github.com/jaegertracing/jaeger/internal/storage/metricstore/disabled"
	memorycfg "github.com/jaegertracing/jaeger/internal/storage/v1/memory"
	"github.com/jaegertracing/jaeger/internal/storage/v2/memory"
	"github.com/jaegertracing/jaeger/internal/telemetry"
	"github.com/jaegertracing/jaeger/internal/tenancy"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: jaeger OTLP_ADDRESS QUERY_ADDRESS")
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	settings := telemetry.NoopSettings()
	storage := must(memory.NewFactory(memorycfg.Configuration{MaxTraces: 100_000}, settings))
	writer := must(storage.CreateTraceWriter())
	reader := must(storage.CreateTraceReader())
	dependencies := must(storage.CreateDependencyReader())

	factory := otlpreceiver.NewFactory()
	config := factory.CreateDefaultConfig().(*otlpreceiver.Config)
	web := config.HTTP.GetOrInsertDefault()
	web.ServerConfig.Endpoint = os.Args[1]
	write := func(ctx context.Context, spans ptrace.Traces) error {
		return writer.WriteTraces(ctx, sanitizer.Sanitize(spans))
	}
	sink := must(consumer.NewTraces(write))
	of := receiver.Settings{ID: component.NewID(factory.Type()), TelemetrySettings: settings.ToOtelComponent()}
	otlp := must(factory.CreateTraces(ctx, of, config, sink))
	check(otlp.Start(ctx, componenttest.NewNopHost()))

	options := &app.QueryOptions{BasePath: "/"}
	options.HTTP = confighttp.NewDefaultServerConfig()
	options.HTTP.Endpoint = os.Args[2]
	options.GRPC.NetAddr = confignet.AddrConfig{Endpoint: "127.0.0.1:0", Transport: confignet.TransportTypeTCP}
	server := must(app.NewServer(
		ctx,
		querysvc.NewQueryService(reader, dependencies, querysvc.QueryServiceOptions{}),
		v2querysvc.NewQueryService(reader, dependencies, v2querysvc.QueryServiceOptions{}),
		must(disabled.NewMetricsReader()),
		options,
		tenancy.NewManager(&tenancy.Options{}),
		settings,
	))
	check(server.Start(ctx))
	<-ctx.Done()
	check(otlp.Shutdown(context.Background()))
	check(server.Close())
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
