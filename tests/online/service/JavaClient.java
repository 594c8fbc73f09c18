import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;

/** Sends each pair of a path and a body as AgentScope Java's transport does, and prints a line for each reply. */
public class JavaClient {
    public static void main(String[] given) throws Exception {
        HttpClient client = HttpClient.newBuilder().version(HttpClient.Version.HTTP_2).build();
        String id = "";
        for (int place = 1; place < given.length; place += 2) {
            HttpRequest request =
                    HttpRequest.newBuilder(URI.create(given[0] + given[place]))
                            .header("Content-Type", "application/json")
                            .header("Authorization", "Bearer dummy")
                            .POST(HttpRequest.BodyPublishers.ofString(given[place + 1].replace("{{id}}", id)))
                            .build();
            HttpResponse<String> reply = client.send(request, HttpResponse.BodyHandlers.ofString());
            System.out.println(reply.statusCode() + " " + reply.version() + " " + reply.body());
            int at = reply.body().indexOf("\"id\":\"");
            id = at < 0 ? id : reply.body().substring(at + 6, reply.body().indexOf('"', at + 6));
        }
    }
}
